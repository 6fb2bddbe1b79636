// The words of a translation: unsure ones are marked, arrow keys move between them, and each can be replaced by an alternative.
import { partsOf, shownTranslation } from "./sentences.js";

const at = (id) => document.getElementById(id);

// Appends a word to a text, with a space unless punctuation or the script does without.
const CLOSING = /^[.,;:!?…)\]}”»%。，、；：！？]/, OPENING = /[([{„¿¡]$/, NO_SPACES = /[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]/;
export function appendWord(before, word) {
  const base = before.trimEnd();
  const apart = base && !CLOSING.test(word) && !OPENING.test(base) && !NO_SPACES.test(word) && !NO_SPACES.test(base.at(-1));
  return apart ? `${base} ${word}` : `${base}${word}`;
}

// Callbacks, each with the index of a sentence: `fetchAlternatives(sentence, prefix, signal)` returns the words that may follow a prefix,
// `choose(sentence, prefix, before, word)` is called when one was chosen, and `activate(sentence)` when the user moves to a sentence.
export function startWords(out, { fetchAlternatives, choose, activate }) {
  const { element, percent, quoted, roving } = globalThis.regardExplain;
  const popover = at("popover");
  let spans = [];
  let opened = null; // { span, controller }

  function draw(state, unsure) {
    close();
    const focused = spans.indexOf(document.activeElement);
    spans = [];
    const nodes = [], parts = partsOf(state);
    state.sentences.forEach((sentence, number) => {
      const shown = shownTranslation(sentence);
      let before = "";
      const line = element("span", { class: sentence.edited === null ? "s" : "s edited" });
      for (const word of shown.words) {
        before += word.before;
        const span = element("span", { class: "w", role: "button", "aria-haspopup": "dialog" }, word.text);
        const { probability } = word;
        // The probability of a word that was forced says nothing.
        if (word.held) span.classList.add("held"); else if (probability !== null && probability < unsure) span.classList.add("unsure");
        if (probability !== null) span.title = word.held ? "one of your terms" : percent(probability);
        span.setAttribute("aria-label", word.held ? `${word.text}, one of your terms` : probability !== null && probability < unsure ? `${word.text}, unsure, ${percent(probability)}` : word.text);
        if (sentence.edited === null && before.length < sentence.prefix.trim().length) span.classList.add("kept");
        Object.assign(span, { number, before, word });
        line.append(word.before, span);
        before += word.text;
        spans.push(span);
      }
      line.append(shown.text.slice(before.length));
      nodes.push(parts[2 * number], line);
    });
    out.replaceChildren(...nodes, parts.at(-1));
    // Left and right move between words, up and down between lines.
    roving(spans, (item, key) => {
      const i = spans.indexOf(item);
      if (key === "ArrowLeft" || key === "ArrowRight") return spans[i + ((key === "ArrowRight") === (getComputedStyle(out).direction === "ltr") ? 1 : -1)];
      if (key === "Home") return spans[0];
      if (key === "End") return spans.at(-1);
      if (key !== "ArrowUp" && key !== "ArrowDown") return undefined;
      return nearest(item, key === "ArrowDown" ? 1 : -1);
    });
    spans.forEach((span) => {
      span.addEventListener("click", () => open(span));
      span.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(span); } });
      span.addEventListener("focus", () => activate(span.number));
    });
    if (focused >= 0) spans[Math.min(focused, spans.length - 1)]?.focus();
  }

  function nearest(item, direction) {
    const here = item.getBoundingClientRect();
    const lines = spans.map((span) => [span, span.getBoundingClientRect()]).filter(([, box]) => (box.top - here.top) * direction > here.height / 2);
    if (!lines.length) return undefined;
    const top = direction > 0 ? Math.min(...lines.map(([, box]) => box.top)) : Math.max(...lines.map(([, box]) => box.top));
    return lines.filter(([, box]) => Math.abs(box.top - top) < here.height / 2).sort(([, a], [, b]) => Math.abs(a.left - here.left) - Math.abs(b.left - here.left))[0][0];
  }

  // --- alternatives to a word ---

  async function open(span) {
    close();
    activate(span.number);
    const controller = new AbortController();
    opened = { span, controller };
    span.classList.add("on");
    span.setAttribute("aria-expanded", "true");
    const list = element("ul", {}, element("li", { class: "note" }, "…"));
    const input = element("input", { "aria-label": `enter another word for ${span.word.text}`, placeholder: "another word", dir: "auto", autocomplete: "off", spellcheck: "false" });
    popover.replaceChildren(element("h2", { id: "popover-title", dir: "auto" }, `Instead of ${quoted(span.word.text)}`), list, element("form", {}, input));
    popover.lastChild.addEventListener("submit", (event) => { event.preventDefault(); if (input.value.trim()) replaceWord(span, input.value.trim()); });
    popover.hidden = false;
    position(span);
    input.focus({ preventScroll: true });
    try {
      const answer = await fetchAlternatives(span.number, span.before, controller.signal);
      fill(list, span, answer.words);
    } catch (error) {
      if (error.name === "AbortError") return;
      list.replaceChildren(element("li", { class: "problem" }, error.message));
    }
    position(span);
  }

  function fill(list, span, alternatives) {
    const buttons = alternatives.map(({ word, probability }) => {
      const bar = element("i", { "aria-hidden": "true" });
      bar.style.width = probability < 0.015 ? "0" : `${(100 * probability).toFixed(1)}%`;
      const button = element("button", { type: "button", "aria-pressed": String(word === span.word.text) }, bar,
        element("span", { dir: "auto" }, word), element("span", {}, percent(probability)));
      button.addEventListener("click", () => (word === span.word.text ? close(true) : replaceWord(span, word)));
      return button;
    });
    const isAlone = alternatives.every(({ word }) => word === span.word.text);
    list.replaceChildren(...buttons.map((button) => element("li", {}, button)), ...(isAlone ? [element("li", { class: "note" }, "The model holds no other word for likely here.")] : []));
    if (!buttons.length) return;
    roving(buttons, (item, key) => buttons[buttons.indexOf(item) + ({ ArrowDown: 1, ArrowUp: -1 }[key] ?? NaN)]);
    const input = popover.querySelector("input");
    input.addEventListener("keydown", (event) => { if (event.key === "ArrowUp") { event.preventDefault(); buttons.at(-1).focus(); } if (event.key === "ArrowDown") { event.preventDefault(); buttons[0].focus(); } });
    if (!input.value && document.activeElement === input) (buttons.find((one) => one.getAttribute("aria-pressed") === "true") ?? buttons[0]).focus({ preventScroll: true });
  }

  function replaceWord(span, word) {
    const prefix = `${appendWord(span.before, word)} `;
    close(true);
    choose(span.number, prefix, span.before, word);
  }

  // Below the word, or above it if there is no room below; always inside the window.
  function position(span) {
    const box = span.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = popover;
    const left = Math.max(10, Math.min(box.left - 12, document.documentElement.clientWidth - width - 10));
    const below = box.bottom + 8;
    const top = below + height > innerHeight - 8 && box.top - height - 8 > 8 ? box.top - height - 8 : below;
    popover.style.left = `${left + scrollX}px`;
    popover.style.top = `${top + scrollY}px`;
  }

  function close(focusWord = false) {
    if (!opened) return;
    const { span, controller } = opened;
    opened = null;
    controller.abort();
    popover.hidden = true;
    span.classList.remove("on");
    span.removeAttribute("aria-expanded");
    if (focusWord) span.focus({ preventScroll: true });
  }

  popover.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.stopPropagation(); close(true); } });
  popover.addEventListener("focusout", (event) => { if (event.relatedTarget && !popover.contains(event.relatedTarget)) close(); });
  document.addEventListener("pointerdown", (event) => { if (opened && !popover.contains(event.target) && event.target !== opened.span) close(); });
  addEventListener("resize", () => { if (opened) position(opened.span); });

  return { draw, close, focus: () => (spans.find((span) => span.getAttribute("tabindex") === "0") ?? spans[0])?.focus() };
}
