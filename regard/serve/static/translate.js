// The translate view: two panes, translation while typing, alternatives for each sentence, words that can be replaced.
import { Problem, post } from "./api.js";
import { startDocuments } from "./document.js";
import { changedPart } from "./splice.js";
import { startTerms } from "./terms.js";
import { startWords } from "./words.js";

const QUICKEST = 90; // milliseconds from the last key to the request; longer if the server is slow
const SLOWEST = 900;
const UNSURE = 0.5; // the probability below which a word is marked
const at = (id) => document.getElementById(id);

export function startTranslate(languages, settings, openExplain) {
  const { element } = globalThis.regardExplain;
  const text = at("source-text"), out = at("out");
  at("no-models").hidden = languages.length > 0;
  at("workbench").hidden = at("keys-help").hidden = languages.length === 0;
  if (!languages.length) return {};

  const pair = startPair(languages, settings.language, () => translate());
  const terms = startTerms(settings, () => { isStale = true; translate(); });
  // sentences: [{ before, text, ways: [{ text, words }], chosen, prefix }], where `ways` are the translations and `chosen` is the index
  // of the one shown; `after` is the text after the last sentence
  const state = { sentences: [], after: "", active: 0, source: "", target: "" };
  let controller = null, timer = 0, lastDuration = 0;
  let isStale = false; // whether the terms have changed since the last translation

  // --- requests ---

  function translateSoon() {
    clearTimeout(timer);
    controller?.abort(); // its result would be out of date
    timer = setTimeout(translate, Math.min(SLOWEST, Math.max(QUICKEST, lastDuration / 2)));
    drawCount();
  }

  async function translate() {
    clearTimeout(timer);
    controller?.abort();
    const request = controller = new AbortController();
    const typed = text.value;
    terms.setPair(pair.known(state.source));
    if (!typed.trim()) { clearOut(); return; }
    if (typed.length > settings.charLimit) { showProblem(`This text has more than ${settings.charLimit.toLocaleString("en")} characters; translate it in parts, or as a document.`); setWaiting(false); return; }
    setWaiting(true);
    const began = performance.now();
    const wanted = pair.selected();
    // With another language pair, or a source language to detect, everything is translated again.
    const isSame = wanted.source === state.source && wanted.target === state.target && !isStale;
    const { first, last, part } = changedPart(isSame ? state.sentences : [], isSame ? state.after : "", typed);
    try {
      const answer = part.trim() || !isSame ? await post("sentences", { q: part, ...wanted, ...terms.jsonFields(part), alternatives: settings.alternatives }, request.signal)
        : { ...wanted, sentences: [], after: part };
      lastDuration = performance.now() - began;
      replace(answer, isSame ? first : 0, isSame ? last : Infinity);
      isStale = false;
      pair.showDetected(answer);
      if (terms.setPair(pair.known(state.source))) { translate(); return; } // there are terms for the detected language
      showProblem("");
      setWaiting(false);
      draw();
    } catch (error) {
      handleFailure(error, request, translate);
    }
  }

  // Replaces the sentences from `first` to before `last` by those of an answer.
  function replace(answer, first, last) {
    const before = state.sentences.slice(0, first), behind = state.sentences.slice(last);
    const between = answer.sentences.map((one) => ({ ...one, chosen: 0, prefix: "" }));
    if (behind.length) behind[0] = { ...behind[0], before: answer.after + behind[0].before };
    Object.assign(state, { source: answer.source, target: answer.target, sentences: [...before, ...between, ...behind],
      after: behind.length ? state.after : answer.after });
    state.active = atCaret();
  }

  // The index of the sentence at the caret.
  function atCaret() {
    let end = 0;
    const found = state.sentences.findIndex((one) => { end += one.before.length + one.text.length; return text.selectionStart <= end; });
    return found < 0 ? Math.max(0, state.sentences.length - 1) : found;
  }

  function handleFailure(error, request, again) {
    if (error.name === "AbortError" || controller !== request) return;
    setWaiting(false);
    if (!(error instanceof Problem)) throw error;
    if (error.status === 403) { document.dispatchEvent(new Event("regard-refused")); showProblem(error.message); return; }
    showProblem(error.message);
    if (error.retry && [0, 429, 503].includes(error.status)) timer = setTimeout(again, 1000 * error.retry);
  }

  // Translates one sentence again, with a translation that begins with `prefix`.
  async function retranslate(number, prefix) {
    controller?.abort();
    clearTimeout(timer);
    const request = controller = new AbortController();
    const sentence = state.sentences[number];
    setWaiting(true);
    try {
      const fields = { q: sentence.text, source: state.source, target: state.target, prefix, ...terms.jsonFields(sentence.text), alternatives: settings.alternatives };
      const answer = await post("sentences", fields, request.signal);
      state.sentences[number] = { ...sentence, ways: answer.sentences[0].ways, unmet: answer.sentences[0].unmet, chosen: 0, prefix };
      showProblem("");
      setWaiting(false);
      draw();
    } catch (error) {
      handleFailure(error, request, () => retranslate(number, prefix));
    }
    // Text typed before the word was chosen may not be translated yet.
    if (controller === request && text.value !== sourceText()) translateSoon();
  }

  // The text that the shown translation belongs to.
  const sourceText = () => state.sentences.map((one) => one.before + one.text).join("") + state.after;

  // --- output ---

  const shownTranslation = (sentence) => sentence.ways[sentence.chosen];
  const translation = () => state.sentences.map((one) => one.before + shownTranslation(one).text).join("") + state.after;

  function draw() {
    out.lang = state.target;
    words.draw(state, shownTranslation, UNSURE);
    const full = state.sentences.length > 0;
    at("copy").hidden = !full;
    at("explain-this").hidden = !full;
    const unsure = out.querySelectorAll(".w.unsure").length;
    const marks = [...(unsure ? [[element("span", { class: "unsure" }, "dotted"), " words are unsure"]] : []),
      ...(out.querySelector(".w.held") ? [[element("span", { class: "held" }, "underlined"), unsure ? " ones are your terms" : " words are your terms"]] : [])];
    at("hint").replaceChildren(...(marks.length ? marks.flatMap((mark, i) => (i ? [", ", ...mark] : mark)) : full ? ["Choose a word to change it"] : []));
    const unmet = new Set(state.sentences.flatMap((one) => one.chosen ? [] : (one.unmet ?? []).map((lost) => lost.text)));
    if (unmet.size) showProblem(`Not in the translation, though asked for: ${[...unmet].join(", ")}`);
    drawAlternatives();
  }

  function drawAlternatives() {
    const sentence = state.sentences[state.active];
    const list = at("other-list");
    const others = sentence ? sentence.ways.map((one, i) => [one, i]).filter(([, i]) => i !== sentence.chosen) : [];
    at("others").hidden = !sentence || (!others.length && !sentence.prefix);
    if (at("others").hidden) return;
    const many = state.sentences.length > 1;
    at("others-title").replaceChildren("Alternatives", ...(many ? [element("q", { dir: "auto" }, sentence.text)] : []));
    const used = new Set(shownTranslation(sentence).text.split(/\s+/));
    list.replaceChildren(...others.map(([one, i]) => {
      // emphasize words that are not in the shown translation
      const shown = one.text.split(/(\s+)/).map((part) => (used.has(part) || !part.trim() ? part : element("b", {}, part)));
      const button = element("button", { type: "button", dir: "auto", lang: state.target }, ...shown);
      button.addEventListener("click", () => { sentence.chosen = i; draw(); at("other-list").querySelector("button")?.focus(); });
      return element("li", {}, button);
    }));
    if (sentence.prefix) {
      const back = element("button", { type: "button", class: "back" }, "Back to the model's own translation");
      back.addEventListener("click", () => retranslate(state.active, ""));
      list.append(element("li", {}, back));
    }
  }

  function activate(number) {
    if (state.active === number) return;
    state.active = number;
    drawAlternatives();
  }

  function clearOut() {
    Object.assign(state, { sentences: [], after: "", active: 0 });
    pair.showDetected({});
    showProblem("");
    setWaiting(false);
    draw();
  }

  const setWaiting = (isWaiting) => { out.classList.toggle("waiting", isWaiting); out.setAttribute("aria-busy", String(isWaiting)); };
  const showProblem = (message) => { at("problem").textContent = message; at("problem").hidden = !message; };

  function drawCount() {
    const length = text.value.length;
    at("clear").hidden = !length;
    at("count").textContent = length > settings.charLimit * 0.5 ? `${length.toLocaleString("en")} of ${settings.charLimit.toLocaleString("en")}` : "";
    at("count").classList.toggle("over-limit", length > settings.charLimit);
    grow();
  }

  // Fits the pane to its text in browsers without field-sizing.
  function grow() {
    if (CSS.supports("field-sizing", "content")) return;
    text.style.height = "auto";
    text.style.height = `${text.scrollHeight}px`;
  }

  // --- mouse and keyboard ---

  const words = startWords(out, {
    fetchAlternatives: (number, prefix, signal) => {
      const { text: q } = state.sentences[number], { keep } = terms.jsonFields(q);
      return post("alternatives", { q, source: state.source, target: state.target, prefix, ...(keep ? { keep } : {}) }, signal);
    },
    choose: retranslate,
    activate,
  });
  startDocuments(settings, () => pair.selected(), () => { terms.setPair(pair.known(state.source)); return terms.formFields(); });

  async function copy() {
    if (!state.sentences.length) return;
    try {
      await navigator.clipboard.writeText(translation());
    } catch { // pages loaded over plain HTTP from another machine have no clipboard
      const selection = getSelection();
      selection.selectAllChildren(out);
      document.execCommand("copy");
      selection.removeAllRanges();
    }
    at("copy").textContent = "Copied";
    setTimeout(() => { at("copy").textContent = "Copy"; }, 1500);
  }

  function swap() {
    const before = translation();
    if (!pair.swap(state.source)) return;
    if (before) text.value = before;
    drawCount();
    translate();
  }

  text.addEventListener("input", translateSoon);
  document.addEventListener("selectionchange", () => { if (document.activeElement === text && state.sentences.length) activate(atCaret()); });
  text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); translate(); } });
  at("clear").addEventListener("click", () => { text.value = ""; drawCount(); translate(); text.focus(); });
  at("copy").addEventListener("click", copy);
  at("swap").addEventListener("click", swap);
  at("explain-this").addEventListener("click", () => {
    const sentence = state.sentences[state.active];
    const isOwn = sentence.chosen === 0 && !sentence.prefix && !Object.keys(terms.jsonFields(sentence.text)).length;
    openExplain(sentence.text, isOwn ? "" : shownTranslation(sentence).text, [state.source, state.target]);
  });
  document.addEventListener("keydown", (event) => {
    if (!event.altKey || event.ctrlKey || event.metaKey || at("view-translate").hidden) return;
    const act = { KeyS: swap, KeyC: copy, KeyT: () => words.focus(), KeyG: terms.toggle }[event.code];
    if (act) { event.preventDefault(); act(); }
  });
  document.addEventListener("regard-key", () => translate());
  drawCount();
  terms.setPair(pair.known(""));
  if (text.value.trim()) translate(); // browsers may keep the text over a reload
  return { onShow: () => { if (matchMedia("(pointer: fine)").matches) text.focus(); }, onHide: () => words.close() };
}

// --- language pair ---

// `initial` is selected at first, unless the browser remembers another pair.
function startPair(languages, initial, onChange) {
  const { element } = globalThis.regardExplain;
  const from = at("from"), to = at("to");
  const names = Object.fromEntries(languages.map((one) => [one.code, one.name]));
  const targets = Object.fromEntries(languages.filter((one) => one.targets.length).map((one) => [one.code, one.targets]));
  const sources = Object.keys(targets);
  const option = (code) => element("option", { value: code }, names[code]);
  const remember = (pair) => { try { localStorage.setItem("regard-pair", JSON.stringify(pair)); } catch { /* storage is disabled */ } };
  let last = null;
  try { last = JSON.parse(localStorage.getItem("regard-pair")); } catch { /* storage is disabled */ }

  from.replaceChildren(...(sources.length > 1 ? [element("option", { value: "auto" }, "Detect language")] : []), ...sources.map(option));
  const targetCodes = () => (from.value === "auto" ? [...new Set(sources.flatMap((code) => targets[code]))].sort() : targets[from.value]);
  const fill = (preferred) => {
    const codes = targetCodes();
    to.replaceChildren(...codes.map(option));
    to.value = codes.includes(preferred) ? preferred : codes[0];
  };
  // With only one language to choose from, its name replaces the menu.
  const drawMenus = () => {
    for (const [select, alone] of [[from, at("from-alone")], [to, at("to-alone")]]) {
      const lone = select.options.length < 2;
      alone.textContent = lone ? select.options[0].textContent : "";
      alone.hidden = !lone;
      select.parentElement.hidden = lone;
    }
    at("swap").disabled = !targets[to.value]?.includes(from.value); // also while the source language is not detected yet
  };
  const set = (source, target) => { from.value = source; fill(target); drawMenus(); };
  const isAvailable = (pair) => Array.isArray(pair) && (pair[0] === "auto" ? sources.length > 1 : targets[pair[0]]?.includes(pair[1]));
  set(...[last, [initial.source.code, initial.target.code], [sources[0], targets[sources[0]][0]]].find(isAvailable));

  from.addEventListener("change", () => { set(from.value, to.value); remember([from.value, to.value]); onChange(); });
  to.addEventListener("change", () => { drawMenus(); remember([from.value, to.value]); onChange(); });
  return {
    selected: () => ({ source: from.value, target: to.value }),
    // The pair with its names, or null while the source language is not detected yet.
    known(detected) {
      const source = from.value === "auto" ? detected : from.value;
      return targets[source]?.includes(to.value) ? { source, target: to.value, sourceName: names[source], targetName: names[to.value] } : null;
    },
    // `detected` is the source language found with "Detect language". Returns whether the pair could be swapped.
    swap(detected) {
      const source = from.value === "auto" ? detected : from.value;
      if (!targets[to.value]?.includes(source)) return false;
      set(to.value, source);
      remember([from.value, to.value]);
      return true;
    },
    showDetected({ detectedLanguage }) {
      if (from.value === "auto") at("swap").disabled = !detectedLanguage || !targets[to.value]?.includes(detectedLanguage.language);
      const name = names[detectedLanguage?.language];
      at("detected").textContent = detectedLanguage ? (detectedLanguage.confidence ? name : `${name}?`) : "";
    },
  };
}
