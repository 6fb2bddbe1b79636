// Draws the explanation of what an encoder says about a text. Data is only ever inserted as text (textContent), never as markup.
"use strict";
(() => {
const { attention, element, fill, hint, matrix, number, percent, pointAtCell, quoted, roving, section, visible } = globalThis.regardExplain;
const WORDS = 15; // that are listed with their numbers
const CANDIDATES = 5; // of each word or blank
const DRAWN = 60; // words of each text in the matrix of pairs
const LONG = 240; // characters: longer texts are written smaller
const TASKS = {
  classify: ["Labels", "How likely each label is. Choose one to see which words decided it.", "label of a text"],
  tag: ["Tags", "How likely each tag is, word by word. Choose a tag to see which words decided it.", "tags of words"],
  fill: ["Blanks", "How likely each token is in the blanks. Choose one to see which words decided it.", "blanks in a text"],
  embed: ["", "", "vector of a text"],
};
const OTHERS = { // the options of `regard explain` for another answer
  classify: "regard explain --label NAME",
  tag: "regard explain --at N --label TAG",
  fill: "regard explain --at N --token TEXT",
};
const signed = (value, digits = 2) => `${value > 0 ? "+" : ""}${number(value, digits)}`;
const biggest = (values) => Math.max(1e-9, ...values.map(Math.abs));

// Numbers of pieces -> numbers of words.
function byWord(pieces, side) {
  const words = side.words.map(() => 0);
  side.pieces.forEach((piece, i) => { words[piece.word] += pieces[i]; });
  return words;
}

// --- the text, whose words are coloured ---

// A line for each text of a reading. `spans` are those of its words by their numbers.
function lines(reading, level) {
  const spans = new Map();
  const made = reading.texts.map((text, place) => {
    const own = [];
    for (let word = text.start; word < text.stop; word += 1) {
      const span = element("span", { class: "word" }, reading.side.words[word]);
      spans.set(word, span);
      own.push(span);
    }
    const line = element(place ? "p" : level, { class: `sentence read${text.text.length > LONG ? " long" : ""}`, dir: "auto" });
    fill(line, own, text.text);
    return line;
  });
  return { lines: made, spans };
}

// Colours words by their numbers: one colour speaks for the answer, the other against it.
function colour(spans, values, most = null) {
  const own = [...spans.keys()].map((word) => values[word]);
  const scale = most ?? biggest(own);
  spans.forEach((span, word) => {
    const value = values[word];
    span.classList.toggle("against", value < 0);
    span.style.setProperty("--share", `${Math.min(45, Math.round((Math.abs(value) / scale) * 45))}%`);
    span.title = signed(value, 3);
  });
}

const uncolour = (spans) => spans.forEach((span) => { span.style.setProperty("--share", "0%"); span.removeAttribute("title"); });

function head(data, written) {
  const { model } = data;
  const facts = element("p", { class: "facts", "aria-live": "polite" });
  const parts = [element("p", { class: "over" }, `Regard · ${TASKS[model.task][2]}`), ...written.flatMap((one) => one.lines), facts];
  if (data.note) parts.push(element("p", { class: "note said-window" }, `${data.note[0].toUpperCase()}${data.note.slice(1)}.`));
  return [element("header", {}, ...parts), facts];
}

// --- predictions ---

// A card with the candidates of each prediction; `choose(attribution)` is called for one that words were found for, `ask(prediction,
// candidate)` for another, where a server can find them.
function predictions(data, reading, choose, ask) {
  const [title, lead] = TASKS[data.model.task];
  const own = section("predictions", title, lead);
  const buttons = new Map();
  const isOne = data.model.task === "classify";
  const text = data.model.task === "fill" ? visible : (one) => one;
  let unexplained = 0, askable = 0;
  const columns = data.predictions.map((prediction, place) => {
    const attributed = (id) => data.attributions.find((one) => one.prediction === place && one.id === id);
    const shown = isOne ? prediction.candidates : prediction.candidates.slice(0, CANDIDATES);
    const missing = data.attributions.filter((one) => one.prediction === place && !shown.some((other) => other.id === one.id))
      .map((one) => ({ id: one.id, text: one.answer, probability: one.probability }));
    const rows = [...shown, ...missing].map((candidate) => {
      const why = attributed(candidate.id);
      const bar = element("i", { "aria-hidden": "true" });
      bar.style.width = `${(candidate.probability * 100).toFixed(1)}%`;
      const isButton = why || ask?.(place, candidate);
      if (!why) { unexplained += 1; askable += isButton ? 1 : 0; }
      const row = element(isButton ? "button" : "div", isButton ? { type: "button", "aria-pressed": "false" } : { class: "plain-row" }, bar,
        element("span", { dir: "auto" }, text(candidate.text)), element("span", {}, percent(candidate.probability)));
      if (why) { row.addEventListener("click", () => choose(why)); buttons.set(why, row); }
      else if (isButton) { row.classList.add("more"); row.addEventListener("click", ask(place, candidate)); }
      return element("li", {}, row);
    });
    const word = prediction.word === null ? "" : reading.side.words[prediction.word];
    const header = word ? [element("header", {}, element("b", { dir: "auto" }, word))] : [];
    return element("li", { class: `step${isOne ? " only" : ""}` }, ...header, element("ol", {}, ...rows));
  });
  const list = element("ol", { class: "steps" }, ...columns);
  own.append(element("div", { class: "card" }, element("div", { class: "scroll", role: "region", "aria-label": title.toLowerCase() }, list),
    ...(unexplained ? [element("p", { class: "note grey" }, ...(askable ? ["Grey: which words decided is computed when you choose it."]
      : ["Grey: not computed here; ", element("code", {}, OTHERS[data.model.task]), " computes which words decided."]))] : [])));
  return [own, buttons];
}

// --- which words decided ---

function decided(data, reading, spans) {
  const own = section("decided", "Which words decided", "How much each word moved the answer: to the right towards it, to the left away from it.");
  const body = element("tbody");
  const status = element("p", { class: "said" });
  const table = element("table", { class: "parts", "aria-label": "words and their parts" }, body);
  own.append(element("div", { class: "card" }, table, status, element("p", { class: "note method" }, `These are ${data.method}.`)));
  const words = reading.texts.flatMap((text) => Array.from({ length: text.stop - text.start }, (_, i) => text.start + i));
  const draw = (one, values) => {
    const order = [...words].sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
    const most = biggest(words.map((word) => values[word]));
    body.replaceChildren(...order.slice(0, WORDS).map((word) => {
      const value = values[word];
      const bar = element("i");
      bar.style.setProperty("--share", `${((Math.abs(value) / most) * 50).toFixed(1)}%`);
      return element("tr", {}, element("td", { dir: "auto" }, spans.get(word).textContent),
        element("td", { class: `part-bar${value < 0 ? " against" : ""}`, "aria-hidden": "true" }, bar), element("td", { class: "number" }, signed(value)));
    }));
    const rest = order.length > WORDS ? ` ${order.length - WORDS} more words, which count for less, are not listed.` : "";
    const off = one.error > 0.05 * Math.max(1, Math.abs(one.value - one.hidden_value)) ? ` The sum misses this by ${number(one.error)}: read the numbers with care.` : "";
    const what = one.probability === null ? "The number" : "The log-odds";
    const anyway = one.hidden_probability >= 0.5 ? " The model gives this answer without the words, too, so few of them speak for it." : "";
    status.textContent = `${what}: ${number(one.value)}; with every word hidden ${number(one.hidden_value)}.${anyway}${rest}${off}`;
  };
  return [own, draw];
}

// --- the words of two texts that make them similar ---

function pairs(data, [first, second], written) {
  const own = section("pairs", "Pairs of words", `How much each pair of words adds to the cosine. ${hint("Point at", "Touch")} a word above to see its counterparts.`);
  const rows = data.similarity.pieces.map((row) => byWord(row, second.side));
  const columns = second.side.words.map((_, word) => byWord(rows.map((row) => row[word]), first.side));
  const values = first.side.words.map((_, one) => second.side.words.map((_, other) => columns[other][one]));
  const most = biggest(values.flat());
  const totals = [values.map((row) => row.reduce((sum, value) => sum + value, 0)), columns.map((column) => column.reduce((sum, value) => sum + value, 0))];
  const settle = () => written.forEach((one, i) => colour(one.spans, totals[i]));
  written.forEach((one, i) => one.spans.forEach((span, word) => {
    const others = i ? columns[word] : values[word];
    const point = () => { uncolour(one.spans); span.style.setProperty("--share", "45%"); colour(written[1 - i].spans, others); };
    for (const event of ["mouseenter", "focus"]) span.addEventListener(event, point);
    for (const event of ["mouseleave", "blur"]) span.addEventListener(event, settle);
    const best = [...written[1 - i].spans.keys()].sort((a, b) => others[b] - others[a])[0];
    const name = (i ? first : second).side.words[best];
    span.setAttribute("role", "note");
    span.setAttribute("aria-label", `${span.textContent}, most similar: ${name}, ${signed(others[best], 3)}`);
  }));
  written.forEach(({ spans }) => {
    const items = [...spans.values()];
    roving(items, (item, key) => items[items.indexOf(item) + ({ ArrowRight: 1, ArrowLeft: -1 }[key] ?? NaN)]);
  });
  const stage = element("div", { class: "matrix scroll" });
  const status = element("p", { class: "said", "aria-live": "polite" }, pointAtCell());
  // Of long texts the words that add most, in their order.
  const biggestOf = (total) => [...total.keys()].sort((a, b) => Math.abs(total[b]) - Math.abs(total[a])).slice(0, DRAWN).sort((a, b) => a - b);
  const [shownRows, shownColumns] = totals.map(biggestOf);
  const isCut = totals.some((total) => total.length > DRAWN);
  const note = isCut ? [element("p", { class: "note" }, `Of each text the ${DRAWN} words that add most are drawn.`)] : [];
  own.append(element("div", { class: "card" }, ...note, stage, status, element("p", { class: "note method" }, `How it is computed: ${data.method}.`)));
  const draw = () => stage.replaceChildren(matrix({ rows: shownRows.map((word) => first.side.words[word]), columns: shownColumns.map((word) => second.side.words[word]),
    values: shownRows.map((row) => shownColumns.map((column) => values[row][column])), status, width: stage.clientWidth,
    label: "parts of the cosine, words of the first text by words of the second", format: (value) => signed(value, 4),
    shade: (value) => [value < 0 ? "var(--warm)" : "var(--accent)", Math.abs(value) / most] }));
  own.ready = () => { settle(); draw(); onResize(stage, draw); };
  return own;
}

function onResize(box, draw) {
  let width = box.clientWidth;
  new ResizeObserver(() => { if (Math.abs(box.clientWidth - width) > 2) { width = box.clientWidth; draw(); } }).observe(box);
}

// --- the whole page ---

// The pieces and words of a reading between which attention is drawn.
function drawn({ side, shown: [start, stop] }) {
  const pieces = side.pieces.slice(start, stop);
  const first = pieces[0].word, last = pieces[pieces.length - 1].word;
  return { pieces: pieces.map((piece) => ({ ...piece, word: piece.word - first })), words: side.words.slice(first, last + 1) };
}

function attentionOf(data, reading, id, title) {
  const [start, stop] = reading.shown;
  const own = { model: data.model, source: drawn(reading), pieces: { shown: stop - start, of: reading.side.pieces.length }, attention: { encoder: reading.attention }, heads: { encoder: reading.heads },
    lead: "Each word looks at all words." };
  return attention(own, id, title);
}

// On a page with a server, `ask(prediction, candidate)` returns what a click on an answer does, or null.
function show(place, data, ask = null) {
  const { readings, model } = data;
  const written = readings.map((reading, i) => lines(reading, i ? "p" : "h1"));
  const [header, facts] = head(data, written);
  const shape = `${model.layers} layers, ${model.num_heads} heads`;
  const parts = [];
  if (data.attributions.length) {
    const [reading] = readings;
    const [list, draw] = decided(data, reading, written[0].spans);
    const choose = (one) => {
      const values = byWord(one.pieces, reading.side);
      colour(written[0].spans, values);
      draw(one, values);
      buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === one)));
      const word = data.predictions[one.prediction].word;
      written[0].spans.forEach((span, own) => span.classList.toggle("asked", model.task === "tag" && own === word));
      const answer = one.probability === null ? `${one.answer} ${number(one.value, 3)}` : `${one.answer.trim()} ${percent(one.probability)}`;
      const hidden = one.probability === null ? number(one.hidden_value, 3) : percent(one.hidden_probability);
      facts.replaceChildren(...(word === null ? [] : [`${quoted(reading.side.words[word])}: `]), element("b", { class: "answer" }, answer), ` · with every word hidden ${hidden} · ${shape}`);
    };
    const [answers, buttons] = data.predictions.some((one) => one.candidates.length) ? predictions(data, reading, choose, ask) : [null, new Map()];
    parts.push(...(answers ? [answers] : []), list);
    choose(data.attributions[0]);
  } else {
    facts.textContent = shape;
  }
  if (data.similarity) {
    const { cosine, pieces } = data.similarity;
    facts.replaceChildren(element("b", { class: "answer" }, `cosine ${number(cosine, 3)}`), ` · ${shape}`,
      ...(pieces ? [] : [" · this model's vectors are not means over tokens, so the cosine cannot be divided among the words"]));
    if (pieces) parts.push(pairs(data, readings, written));
  }
  readings.forEach((reading, i) => {
    const title = readings.length > 1 ? `Attention in the ${i ? "second" : "first"} text` : "Attention";
    parts.push(attentionOf(data, reading, i ? "attention-in-second" : "attention-in-text", title));
  });
  const nav = element("nav", { "aria-label": "sections" }, ...parts.map((part) => element("a", { href: `#${part.id}` }, part.querySelector("h2").textContent)));
  place.replaceChildren(element("main", {}, header, nav, ...parts, element("p", { class: "caution" }, data.caution), element("footer", {}, "Made with Regard.")));
  parts.forEach((part) => part.ready?.());
  document.title = `${data.text.replace("\t", " / ")} · Regard`;
}

globalThis.regardExplain.showEncoder = show;
const embedded = document.getElementById("explanation");
const page = embedded && JSON.parse(embedded.textContent);
if (page?.readings) show(document.getElementById("explain"), page);
})();
