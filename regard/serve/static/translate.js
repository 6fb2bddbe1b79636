// The translate view: two panes, translation while typing, alternatives for each sentence, words that can be replaced, and a
// translation that can be edited.
import { Problem, post } from "./api.js";
import { startDocuments } from "./document.js";
import { grow, startEditing } from "./edit.js";
import { startHistory } from "./history.js";
import { startPair } from "./pair.js";
import { earlierOf, hasWork, newState, otherLanguage, partsOf, replaceSentences, setParts, setText, shownText, sourceOf, startMemory } from "./sentences.js";
import { copyText, linkTo } from "./share.js";
import { startSpeech, stopSpeech } from "./speech.js";
import { changedPart } from "./splice.js";
import { hasTerm, startTerms } from "./terms.js";
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
  const termsOf = (sentence) => JSON.stringify(terms.jsonFields(sentence));
  const state = newState(), memory = startMemory();
  let controller = null, timer = 0, lastDuration = 0;
  let isStale = false; // whether the terms have changed since the last translation
  let opened = null; // { text, edits } of a text that was opened from the history or a link, until it is translated

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
    // With another language pair, a source language to detect, or other terms, everything is translated again.
    const isSame = wanted.source === state.source && wanted.target === state.target && !isStale && !opened;
    const { first, last, part } = changedPart(isSame ? state.sentences : [], isSame ? state.after : "", typed);
    try {
      const answer = part.trim() || !isSame ? await post("sentences", { q: part, ...wanted, ...terms.jsonFields(part), alternatives: settings.alternatives }, request.signal)
        : { ...wanted, sentences: [], after: part };
      lastDuration = performance.now() - began;
      memory.keep(state);
      const fresh = replaceSentences(state, answer, isSame ? first : 0, isSame ? last : Infinity, termsOf);
      const again = memory.restore(state, fresh);
      pair.showDetected(answer);
      if (terms.setPair(pair.known(state.source))) { translate(); return; } // there are terms for the detected language
      isStale = again.length > 0; // until all of them have come
      for (const [number, prefix] of again) await retranslated(number, prefix, request.signal);
      isStale = false;
      if (opened?.text === typed) for (const [number, edited] of opened.edits) if (state.sentences[number]) setText(state.sentences[number], edited);
      opened = null;
      state.active = atCaret();
      settle();
    } catch (error) {
      handleFailure(error, request, translate);
    }
  }

  // The translation is complete.
  function settle() {
    setWaiting(false);
    show();
  }

  function show() {
    showProblem("");
    draw();
    remember();
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

  // Gets a translation of one sentence that begins with `prefix`.
  async function retranslated(number, prefix, signal) {
    const sentence = state.sentences[number];
    const fields = { q: sentence.text, source: state.source, target: state.target, prefix, ...terms.jsonFields(sentence.text), alternatives: settings.alternatives };
    const answer = await post("sentences", fields, signal);
    const { ways, unmet } = answer.sentences[0];
    Object.assign(sentence, { ways, unmet: unmet ?? [], terms: termsOf(sentence.text), earlier: earlierOf(sentence), chosen: 0, prefix, edited: null });
  }

  async function retranslate(number, prefix) {
    controller?.abort();
    clearTimeout(timer);
    const request = controller = new AbortController();
    setWaiting(true);
    try {
      await retranslated(number, prefix, request.signal);
      settle();
    } catch (error) {
      handleFailure(error, request, () => retranslate(number, prefix));
    }
    // Text typed before the word was chosen may not be translated yet.
    if (controller === request && text.value !== sourceOf(state)) translateSoon();
  }

  // --- output ---

  const translation = () => partsOf(state).join("");

  function draw() {
    out.lang = at("edit-text").lang = state.target;
    const full = state.sentences.length > 0;
    if (!full) editing.stop();
    for (const id of ["copy", "edit", "explain-this", "link"]) at(id).hidden = !full;
    editing.show();
    if (!editing.isOn()) words.draw(state, UNSURE);
    drawHint();
    pair.showOther(otherLanguage(state), state.source);
    const unmet = new Set(state.sentences.flatMap(unmetIn));
    if (unmet.size) showProblem(`Not in the translation, though asked for: ${[...unmet].join(", ")}`);
    drawAlternatives();
    showSpeech();
  }

  // What was asked for and is not in the shown translation of a sentence.
  function unmetIn(sentence) {
    if (sentence.edited === null) return sentence.chosen ? [] : sentence.unmet.map((lost) => lost.text);
    const { glossary = {}, keep = [] } = terms.jsonFields(sentence.text);
    return [...Object.values(glossary), ...keep.map((word) => [word])].filter((ways) => !ways.some((way) => hasTerm(sentence.edited, way))).map(([way]) => way);
  }

  function drawHint() {
    const marks = [[".w.unsure", "unsure", "dotted", "unsure"], [".w.held", "held", "underlined", "your terms"], [".w.kept, .s.edited", "kept", "coloured", "yours"]]
      .filter(([selector]) => out.querySelector(selector))
      .flatMap(([, name, look, meaning], i) => [i ? ", " : "", element("span", { class: name }, look), `: ${meaning}`]);
    const full = state.sentences.length > 0;
    at("hint").replaceChildren(...(editing.isOn() ? ["Your changes stay when you add text or terms"] : marks.length ? marks : full ? ["Choose a word to change it"] : []));
  }

  function drawAlternatives() {
    const sentence = state.sentences[state.active];
    const list = at("other-list");
    const shown = sentence ? shownText(sentence) : "";
    const isChanged = sentence && (sentence.edited !== null || sentence.chosen > 0);
    const others = sentence ? sentence.ways.map((one, i) => [one.text, () => choose(sentence, { chosen: i, edited: null }), isChanged && !i && !sentence.prefix ? "the model's own" : ""]) : [];
    const earlier = sentence ? sentence.earlier.filter((one) => !others.some(([way]) => way === one)).map((one) => [one, () => choose(sentence, { edited: one }), "yours"]) : [];
    const offered = [...others, ...earlier].filter(([one]) => one !== shown);
    const hasBack = sentence && (sentence.prefix !== "" || sentence.gap !== null);
    at("others").hidden = !offered.length && !hasBack;
    if (at("others").hidden) return;
    const many = state.sentences.length > 1;
    at("others-title").replaceChildren("Alternatives", ...(many ? [element("q", { dir: "auto" }, sentence.text)] : []));
    const used = new Set(shown.split(/\s+/));
    list.replaceChildren(...offered.map(([one, take, mark]) => {
      // emphasize words that are not in the shown translation
      const parts = one.split(/(\s+)/).map((part) => (used.has(part) || !part.trim() ? part : element("b", {}, part)));
      const button = element("button", { type: "button", dir: "auto", lang: state.target }, ...parts, ...(mark ? [element("span", { class: "badge", lang: "en" }, mark)] : []));
      button.addEventListener("click", take);
      return element("li", {}, button);
    }));
    if (!hasBack) return;
    const back = element("button", { type: "button", class: "back" }, "Back to the model's own translation");
    back.addEventListener("click", () => {
      sentence.gap = null;
      if (sentence.prefix) retranslate(state.active, ""); else choose(sentence, { chosen: 0, edited: null });
    });
    list.append(element("li", {}, back));
  }

  // Shows another translation of a sentence; the user's own is still offered.
  function choose(sentence, change) {
    Object.assign(sentence, { earlier: earlierOf(sentence) }, change);
    settle();
    at("other-list").querySelector("button")?.focus();
  }

  function activate(number) {
    if (state.active === number) return;
    state.active = number;
    drawAlternatives();
  }

  function clearOut() {
    memory.keep(state);
    Object.assign(state, { sentences: [], after: "", end: null, active: 0 });
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
    at("formats").hidden = length > 0;
    at("count").textContent = length > settings.charLimit * 0.5 ? `${length.toLocaleString("en")} of ${settings.charLimit.toLocaleString("en")}` : "";
    at("count").classList.toggle("over-limit", length > settings.charLimit);
    grow(text);
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
  const editing = startEditing({ area: at("edit-text"), button: at("edit"), out, parts: () => partsOf(state), onEdit: (parts) => { setParts(state, parts); show(); }, onToggle: draw });
  startDocuments(settings, () => pair.selected(), () => { terms.setPair(pair.known(state.source)); return terms.formFields(); });

  // --- keeping, sharing, reading aloud ---

  const edits = () => state.sentences.flatMap((one, i) => (hasWork(one) ? [[i, shownText(one)]] : []));
  const history = startHistory({ open, names: pair.names });
  function remember() {
    if (state.sentences.length && text.value === sourceOf(state)) history.note({ source: state.source, target: state.target, text: text.value, translation: translation(), edits: edits() });
  }

  // Shows a text of the history or of a link, with what was changed in its translation.
  function open(entry) {
    const isServed = pair.choose(entry.source, entry.target);
    text.value = entry.text;
    opened = { text: text.value, edits: isServed ? entry.edits : [] };
    text.setSelectionRange(0, 0);
    drawCount();
    translate();
    if (!isServed) say(`There is no model from ${pair.nameOf(entry.source)} to ${pair.nameOf(entry.target)} here.`);
    focusText();
  }

  const showSource = startSpeech(at("listen-source"), () => ({ language: state.source, texts: state.sentences.map((one) => one.text) }));
  const showTarget = startSpeech(at("listen-target"), () => ({ language: state.target, texts: state.sentences.map(shownText).filter((one) => one.trim()) }));
  function showSpeech() { showSource(); showTarget(); }

  function focusText() { if (matchMedia("(pointer: fine)").matches) text.focus(); } // on a phone the keyboard would cover the page

  async function share() {
    const link = linkTo({ source: state.source, target: state.target, text: sourceOf(state), edits: edits() });
    if (!link) { say("This text is too long for a link; share it as a document."); return; }
    await copyText(link);
    say("Link copied. The text is in the link itself; no server keeps it.");
  }

  let saying = 0;
  function say(message) {
    clearTimeout(saying);
    at("toast").textContent = message;
    saying = setTimeout(() => { at("toast").textContent = ""; }, 6000);
  }

  async function copy() {
    if (!state.sentences.length) return;
    await copyText(translation());
    at("copy").textContent = "Copied";
    setTimeout(() => { at("copy").textContent = "Copy"; }, 1500);
  }

  function swap() {
    const before = translation();
    if (!pair.swap(state.source)) return;
    history.next();
    if (before) text.value = before;
    drawCount();
    translate();
  }

  function clear() {
    history.next();
    text.value = "";
    drawCount();
    translate();
    text.focus();
  }

  text.addEventListener("input", () => { stopSpeech(); translateSoon(); });
  document.addEventListener("selectionchange", () => { if (document.activeElement === text && state.sentences.length) activate(atCaret()); });
  text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); translate(); } });
  at("clear").addEventListener("click", clear);
  at("copy").addEventListener("click", copy);
  at("link").addEventListener("click", share);
  at("swap").addEventListener("click", swap);
  at("explain-this").addEventListener("click", () => {
    const sentence = state.sentences[state.active];
    const isOwn = !hasWork(sentence) && !Object.keys(terms.jsonFields(sentence.text)).length;
    openExplain(sentence.text, isOwn ? "" : shownText(sentence), [state.source, state.target]);
  });
  document.addEventListener("keydown", (event) => {
    if (!event.altKey || event.ctrlKey || event.metaKey || at("view-translate").hidden) return;
    const act = { KeyS: swap, KeyC: copy, KeyT: () => { editing.stop(); draw(); words.focus(); }, KeyG: terms.toggle, KeyE: editing.toggle, KeyH: history.toggle }[event.code];
    if (act) { event.preventDefault(); act(); }
  });
  document.addEventListener("regard-key", () => translate());
  drawCount();
  terms.setPair(pair.known(""));
  if (text.value.trim()) translate(); // browsers may keep the text over a reload
  return { open, onShow: focusText, onHide: () => { words.close(); stopSpeech(); } };
}
