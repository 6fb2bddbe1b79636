// The translate view: two panes, translation while typing, sentences with other ways to say them, words that can be changed.
import { Problem, post } from "./api.js";
import { startDocuments } from "./document.js";
import { changedPart } from "./splice.js";
import { startTerms } from "./terms.js";
import { startWords } from "./words.js";

const QUICKEST = 90; // milliseconds after the last key; longer where the server is slow to answer
const SLOWEST = 900;
const UNSURE = 0.5; // the probability below which a word is marked
const at = (id) => document.getElementById(id);

export function startTranslate(languages, settings, explainThis) {
  const { element } = globalThis.regardExplain;
  const text = at("source-text"), out = at("out");
  at("no-models").hidden = languages.length > 0;
  at("workbench").hidden = at("keys-help").hidden = languages.length === 0;
  if (!languages.length) return {};

  const pair = startPair(languages, settings.language, () => translate());
  const terms = startTerms(settings, () => { isStale = true; translate(); });
  // sentences: [{ before, text, ways: [{ text, words }], way, prefix }]; `after` is what follows the last one
  const state = { sentences: [], after: "", active: 0, source: "", target: "" };
  let controller = null, timer = 0, taken = 0;
  let isStale = false; // whether terms were changed since the sentences were translated

  // --- asking ---

  function later() {
    clearTimeout(timer);
    controller?.abort(); // what was asked before is no longer wanted
    timer = setTimeout(translate, Math.min(SLOWEST, Math.max(QUICKEST, taken / 2)));
    drawCount();
  }

  async function translate() {
    clearTimeout(timer);
    controller?.abort();
    const own = controller = new AbortController();
    const asked = text.value;
    terms.use(pair.known(state.source));
    if (!asked.trim()) { clearOut(); return; }
    if (asked.length > settings.charLimit) { tell(`This text has more than ${settings.charLimit.toLocaleString("en")} characters; translate it in parts, or as a document.`); waiting(false); return; }
    waiting(true);
    const began = performance.now();
    const wanted = pair.asked();
    // In another language everything is new; so is a language that is to be detected.
    const isSame = wanted.source === state.source && wanted.target === state.target && !isStale;
    const { first, last, part } = changedPart(isSame ? state.sentences : [], isSame ? state.after : "", asked);
    try {
      const answer = part.trim() || !isSame ? await post("sentences", { q: part, ...wanted, ...terms.asked(part), alternatives: settings.alternatives }, own.signal)
        : { ...wanted, sentences: [], after: part };
      taken = performance.now() - began;
      put(answer, isSame ? first : 0, isSame ? last : Infinity);
      isStale = false;
      pair.tell(answer);
      if (terms.use(pair.known(state.source))) { translate(); return; } // a language was detected that there are terms for
      tell("");
      waiting(false);
      draw();
    } catch (error) {
      failed(error, own, translate);
    }
  }

  // The sentences of an answer between those that stay.
  function put(answer, first, last) {
    const before = state.sentences.slice(0, first), behind = state.sentences.slice(last);
    const between = answer.sentences.map((one) => ({ ...one, way: 0, prefix: "" }));
    if (behind.length) behind[0] = { ...behind[0], before: answer.after + behind[0].before };
    Object.assign(state, { source: answer.source, target: answer.target, sentences: [...before, ...between, ...behind],
      after: behind.length ? state.after : answer.after });
    state.active = atCaret();
  }

  // The sentence that is being written.
  function atCaret() {
    let end = 0;
    const found = state.sentences.findIndex((one) => { end += one.before.length + one.text.length; return text.selectionStart <= end; });
    return found < 0 ? Math.max(0, state.sentences.length - 1) : found;
  }

  function failed(error, own, again) {
    if (error.name === "AbortError" || controller !== own) return;
    waiting(false);
    if (!(error instanceof Problem)) throw error;
    if (error.status === 403) { document.dispatchEvent(new Event("regard-refused")); tell(error.message); return; }
    tell(error.message);
    if (error.retry && [0, 429, 503].includes(error.status)) timer = setTimeout(again, 1000 * error.retry);
  }

  // One sentence again, beginning with this text.
  async function retranslate(number, prefix) {
    controller?.abort();
    clearTimeout(timer);
    const own = controller = new AbortController();
    const sentence = state.sentences[number];
    waiting(true);
    try {
      const asked = { q: sentence.text, source: state.source, target: state.target, prefix, ...terms.asked(sentence.text), alternatives: settings.alternatives };
      const answer = await post("sentences", asked, own.signal);
      state.sentences[number] = { ...sentence, ways: answer.sentences[0].ways, way: 0, prefix };
      tell("");
      waiting(false);
      draw();
    } catch (error) {
      failed(error, own, () => retranslate(number, prefix));
    }
    // What was typed before the choice was not sent yet, or its answer not waited for.
    if (controller === own && text.value !== sourceText()) later();
  }

  // The text that is translated here.
  const sourceText = () => state.sentences.map((one) => one.before + one.text).join("") + state.after;

  // --- showing ---

  const way = (sentence) => sentence.ways[sentence.way];
  const translation = () => state.sentences.map((one) => one.before + way(one).text).join("") + state.after;

  function draw() {
    out.lang = state.target;
    words.draw(state, way, UNSURE);
    const full = state.sentences.length > 0;
    at("copy").hidden = !full;
    at("explain-this").hidden = !full;
    const unsure = out.querySelectorAll(".w.unsure").length;
    const marks = [...(unsure ? [[element("span", { class: "unsure" }, "dotted"), " words are unsure"]] : []),
      ...(out.querySelector(".w.held") ? [[element("span", { class: "held" }, "underlined"), unsure ? " ones are your terms" : " words are your terms"]] : [])];
    at("hint").replaceChildren(...(marks.length ? marks.flatMap((mark, i) => (i ? [", ", ...mark] : mark)) : full ? ["Choose a word to change it"] : []));
    drawOthers();
  }

  function drawOthers() {
    const sentence = state.sentences[state.active];
    const list = at("other-list");
    const others = sentence ? sentence.ways.map((one, i) => [one, i]).filter(([, i]) => i !== sentence.way) : [];
    at("others").hidden = !sentence || (!others.length && !sentence.prefix);
    if (at("others").hidden) return;
    const many = state.sentences.length > 1;
    at("others-title").replaceChildren("Alternatives", ...(many ? [element("q", { dir: "auto" }, sentence.text)] : []));
    const used = new Set(way(sentence).text.split(/\s+/));
    list.replaceChildren(...others.map(([one, i]) => {
      // words that the shown translation lacks are set off
      const shown = one.text.split(/(\s+)/).map((part) => (used.has(part) || !part.trim() ? part : element("b", {}, part)));
      const button = element("button", { type: "button", dir: "auto", lang: state.target }, ...shown);
      button.addEventListener("click", () => { sentence.way = i; draw(); at("other-list").querySelector("button")?.focus(); });
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
    drawOthers();
  }

  function clearOut() {
    Object.assign(state, { sentences: [], after: "", active: 0 });
    pair.tell({});
    tell("");
    waiting(false);
    draw();
  }

  const waiting = (is) => { out.classList.toggle("waiting", is); out.setAttribute("aria-busy", String(is)); };
  const tell = (message) => { at("problem").textContent = message; at("problem").hidden = !message; };

  function drawCount() {
    const length = text.value.length;
    at("clear").hidden = !length;
    at("count").textContent = length > settings.charLimit * 0.5 ? `${length.toLocaleString("en")} of ${settings.charLimit.toLocaleString("en")}` : "";
    at("count").classList.toggle("over-limit", length > settings.charLimit);
    grow();
  }

  // The pane is as high as its text needs. (Browsers that know field-sizing do it by themselves.)
  function grow() {
    if (CSS.supports("field-sizing", "content")) return;
    text.style.height = "auto";
    text.style.height = `${text.scrollHeight}px`;
  }

  // --- hands and keys ---

  const words = startWords(out, {
    others: (number, prefix, signal) => {
      const { text: q } = state.sentences[number], { keep } = terms.asked(q);
      return post("alternatives", { q, source: state.source, target: state.target, prefix, ...(keep ? { keep } : {}) }, signal);
    },
    choose: retranslate,
    activate,
  });
  startDocuments(settings, () => pair.asked(), () => { terms.use(pair.known(state.source)); return terms.lines(); });

  async function copy() {
    if (!state.sentences.length) return;
    try {
      await navigator.clipboard.writeText(translation());
    } catch { // there is no clipboard for pages that come over plain HTTP from another machine
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

  text.addEventListener("input", later);
  document.addEventListener("selectionchange", () => { if (document.activeElement === text && state.sentences.length) activate(atCaret()); });
  text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); translate(); } });
  at("clear").addEventListener("click", () => { text.value = ""; drawCount(); translate(); text.focus(); });
  at("copy").addEventListener("click", copy);
  at("swap").addEventListener("click", swap);
  at("explain-this").addEventListener("click", () => {
    const sentence = state.sentences[state.active];
    const isOwn = sentence.way === 0 && !sentence.prefix && !Object.keys(terms.asked(sentence.text)).length;
    explainThis(sentence.text, isOwn ? "" : way(sentence).text, [state.source, state.target]);
  });
  document.addEventListener("keydown", (event) => {
    if (!event.altKey || event.ctrlKey || event.metaKey || at("view-translate").hidden) return;
    const act = { KeyS: swap, KeyC: copy, KeyT: () => words.focus(), KeyG: terms.toggle }[event.code];
    if (act) { event.preventDefault(); act(); }
  });
  document.addEventListener("regard-key", () => translate());
  drawCount();
  terms.use(pair.known(""));
  if (text.value.trim()) translate(); // a browser may have kept it over a reload
  return { shown: () => { if (matchMedia("(pointer: fine)").matches) text.focus(); }, left: () => words.close() };
}

// --- the pair of languages ---

// `first` is the pair that it begins with, unless another was chosen here before.
function startPair(languages, first, changed) {
  const { element } = globalThis.regardExplain;
  const from = at("from"), to = at("to");
  const names = Object.fromEntries(languages.map((one) => [one.code, one.name]));
  const targets = Object.fromEntries(languages.filter((one) => one.targets.length).map((one) => [one.code, one.targets]));
  const sources = Object.keys(targets);
  const option = (code) => element("option", { value: code }, names[code]);
  const remember = (pair) => { try { localStorage.setItem("regard-pair", JSON.stringify(pair)); } catch { /* storage is switched off */ } };
  let last = null;
  try { last = JSON.parse(localStorage.getItem("regard-pair")); } catch { /* likewise */ }

  from.replaceChildren(...(sources.length > 1 ? [element("option", { value: "auto" }, "Detect language")] : []), ...sources.map(option));
  const into = () => (from.value === "auto" ? [...new Set(sources.flatMap((code) => targets[code]))].sort() : targets[from.value]);
  const fill = (wished) => {
    const codes = into();
    to.replaceChildren(...codes.map(option));
    to.value = codes.includes(wished) ? wished : codes[0];
  };
  // Where there is nothing to choose, the name alone stands there.
  const dress = () => {
    for (const [select, alone] of [[from, at("from-alone")], [to, at("to-alone")]]) {
      const lone = select.options.length < 2;
      alone.textContent = lone ? select.options[0].textContent : "";
      alone.hidden = !lone;
      select.parentElement.hidden = lone;
    }
    at("swap").disabled = !targets[to.value]?.includes(from.value); // one that is to be detected is not known yet
  };
  const set = (source, target) => { from.value = source; fill(target); dress(); };
  const fits = (pair) => Array.isArray(pair) && (pair[0] === "auto" ? sources.length > 1 : targets[pair[0]]?.includes(pair[1]));
  set(...[last, [first.source.code, first.target.code], [sources[0], targets[sources[0]][0]]].find(fits));

  from.addEventListener("change", () => { set(from.value, to.value); remember([from.value, to.value]); changed(); });
  to.addEventListener("change", () => { dress(); remember([from.value, to.value]); changed(); });
  return {
    asked: () => ({ source: from.value, target: to.value }),
    // The pair with its names; null where the source is to be detected and was not yet.
    known(detected) {
      const source = from.value === "auto" ? detected : from.value;
      return targets[source]?.includes(to.value) ? { source, target: to.value, sourceName: names[source], targetName: names[to.value] } : null;
    },
    // `detected` is the language that the text was taken for, where that was to be found out
    swap(detected) {
      const source = from.value === "auto" ? detected : from.value;
      if (!targets[to.value]?.includes(source)) return false;
      set(to.value, source);
      remember([from.value, to.value]);
      return true;
    },
    tell({ detectedLanguage: found }) {
      if (from.value === "auto") at("swap").disabled = !found || !targets[to.value]?.includes(found.language);
      at("detected").textContent = found ? (found.confidence ? names[found.language] : `${names[found.language]}?`) : "";
    },
  };
}
