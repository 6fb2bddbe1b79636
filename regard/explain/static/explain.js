// Draws one explanation. Data is only ever inserted as text (textContent), never as markup.
"use strict";
(() => {
const COLOURS = 16;
const MIN_WEIGHT = 0.02;
const KINDS = {
  encoder: ["Encoder", "Each source word looks at all source words.", "source word", "looks at"],
  decoder: ["Decoder", "Each target word looks at itself and the words before it.", "target word", "looks at"],
  cross: ["Cross", "Each target word, while it is being chosen, looks at the source.", "word being chosen", "looks at"],
};

// --- small helpers ---

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children); // strings become text nodes
  return node;
}

function svgElement(name, attributes = {}, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text) node.textContent = text;
  return node;
}

// Shares and probabilities, as many digits as on the command line. 0.0% would look like never, and 100.0% like always, which the
// rounded data cannot tell.
const percent = (share) => (share < 0.0005 ? "<0.1%" : share >= 0.9995 ? ">99.9%" : `${(share * 100).toFixed(1)}%`);
// What to do with a mouse and a keyboard, or on a screen that is touched.
const hint = (mouse, touch) => (matchMedia("(hover: none)").matches ? touch : mouse);
const number = (value, digits = 2) => value.toFixed(digits).replace("-", "−");
const colourOf = (head) => `var(--h${head % COLOURS})`;
const mean = (matrices) => matrices[0].map((row, i) => row.map((_, j) => matrices.reduce((sum, m) => sum + m[i][j], 0) / matrices.length));
const quoted = (text) => `“${text}”`;

// The width of text as it will be drawn, measured on a canvas.
const ruler = document.createElement("canvas").getContext("2d");
function widthOf(text, size) {
  ruler.font = `${size}px system-ui, sans-serif`;
  return ruler.measureText(text).width;
}

function clipped(text, room, size) {
  if (widthOf(text, size) <= room) return text;
  let end = text.length;
  while (end > 1 && widthOf(text.slice(0, end) + "…", size) > room) end -= 1;
  return text.slice(0, end) + "…";
}

// Word-level weights from piece-level ones: the sum over a key word's pieces, the mean (or sum) over a query word's pieces.
function byWords(matrix, queries, keys, sumQueries = false) {
  const rows = queries.words.map(() => keys.words.map(() => 0));
  const counts = queries.words.map(() => 0);
  queries.pieces.forEach((piece) => (counts[piece.word] += 1));
  queries.pieces.forEach((query, i) => keys.pieces.forEach((key, j) => {
    rows[query.word][key.word] += matrix[i][j] / (sumQueries ? 1 : counts[query.word]);
  }));
  return rows;
}

// Which attention aligns words, in words; explanations of earlier versions do not name heads.
function alignedBy({ layer, heads, shift }) {
  const named = heads && (heads.length === 1 ? `, head ${heads[0] + 1}` : `, heads ${heads.map((head) => head + 1).join(", ")}`);
  return `layer ${layer + 1}${named || ""}${shift ? ", in the step that reads the word" : ""}`;
}

// A group with one Tab stop, and arrow keys inside it; `go(item, key)` returns the item to move to.
function roving(items, go) {
  items.forEach((item, i) => {
    item.setAttribute("tabindex", i ? "-1" : "0");
    item.addEventListener("keydown", (event) => {
      const next = go(item, event.key);
      if (!next) return;
      event.preventDefault();
      items.forEach((other) => other.setAttribute("tabindex", other === next ? "0" : "-1"));
      next.focus();
    });
  });
}

// Calls `draw` to replace the content of a box, and restores the keyboard focus.
function redraw(box, draw) {
  const key = box.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  draw();
  if (key) [...box.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key)?.focus();
}

function segments(label, choices, current, choose) {
  const buttons = choices.map(([value, text]) => {
    const button = element("button", { type: "button", "aria-pressed": String(value === current), "data-key": `${label} ${value}` }, text);
    button.addEventListener("click", () => {
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      choose(value);
    });
    return button;
  });
  const box = element("div", { class: "segments", role: "group", "aria-label": label }, ...buttons);
  return element("div", { class: "group" }, element("span", { "aria-hidden": "true" }, label), box);
}

function section(id, title, lead) {
  return element("section", { id, "aria-labelledby": `${id}-title` }, element("h2", { id: `${id}-title` }, title),
    element("p", { class: "lead" }, lead));
}

// --- the sentence and its translation, with the alignment between them ---

function headline(data, edit) {
  const { model } = data;
  const make = (side, kind, level) => [element(level, { class: `sentence ${kind}`, dir: "auto" }),
    side.words.slice(0, -1).map((word) => element("span", { class: "word" }, word))];
  const [sourceLine, sourceWords] = make(data.source, "source", "h1");
  const [targetLine, targetWords] = make(data.target, "target", "p");
  fill(sourceLine, sourceWords, data.text);
  fill(targetLine, targetWords, data.translation);
  let unsure = 0;
  targetWords.forEach((span, word) => {
    const places = data.target.pieces.map((piece, place) => [piece.word, place]).filter(([own]) => own === word);
    const probability = Math.exp(places.reduce((sum, [, place]) => sum + data.steps[place].log_prob, 0));
    span.title = `probability ${percent(probability)}`;
    if (probability < 0.5) { span.classList.add("unsure"); unsure += 1; }
  });
  const show = (source, target) => {
    sourceWords.forEach((span, word) => span.classList.toggle("on", source.includes(word)));
    targetWords.forEach((span, word) => span.classList.toggle("on", target.includes(word)));
  };
  const links = data.alignment.links;
  targetWords.forEach((span, word) => {
    const from = links.filter(([t]) => t === word).map(([, s]) => s);
    for (const event of ["mouseenter", "focus"]) span.addEventListener(event, () => show(from, [word]));
    for (const event of ["mouseleave", "blur"]) span.addEventListener(event, () => show([], []));
    span.setAttribute("role", edit ? "button" : "note");
    span.setAttribute("aria-label", `${data.target.words[word]}, aligned with ${from.map((s) => data.source.words[s]).join(", ") || "nothing"}, ${span.title}`);
    if (edit) editable(span, (text) => edit(beforeWord(targetLine, span), text));
  });
  roving(targetWords, (item, key) => targetWords[targetWords.indexOf(item) + ({ ArrowRight: 1, ArrowLeft: -1 }[key] ?? NaN)]);
  sourceWords.forEach((span, word) => {
    span.addEventListener("mouseenter", () => show([word], links.filter(([, s]) => s === word).map(([t]) => t)));
    span.addEventListener("mouseleave", () => show([], []));
  });
  const layers = `${model.encoder_layers} + ${model.decoder_layers} layers, ${model.num_heads} heads`;
  const facts = element("p", { class: "facts" }, `${data.given ? "given translation · " : ""}log-probability ${number(data.log_prob)} · ` +
    `beam ${model.beam} · ${layers}`);
  if (unsure) facts.append(" · ", element("span", { class: "unsure" }, "unsure words"));
  if (edit) facts.append(" · choose a word to replace it");
  return element("header", {}, element("p", { class: "over" }, `Regard · ${model.source} → ${model.target}`), sourceLine, targetLine, facts);
}

// A word that can be replaced: Enter continues from the new word, Escape restores the old one.
function editable(span, done) {
  span.classList.add("editable");
  const open = () => {
    const input = element("input", { class: "edit", "aria-label": `instead of ${span.textContent}`, value: span.textContent, dir: "auto", autocomplete: "off", spellcheck: "false" });
    input.size = Math.max(3, span.textContent.length); // for browsers that do not fit fields to their content
    let closed = false; // removing the field blurs it, which would close it again
    const close = () => { if (!closed) { closed = true; input.replaceWith(span); } };
    input.addEventListener("blur", close);
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      const text = input.value.trim();
      close();
      span.focus();
      if (event.key === "Enter" && text && text !== span.textContent) done(text);
    });
    span.replaceWith(input);
    input.select();
  };
  span.addEventListener("click", open);
  span.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); open(); } });
}

// The text of a line before one of its words.
function beforeWord(line, span) {
  const texts = [...line.childNodes];
  return texts.slice(0, texts.indexOf(span)).map((node) => node.textContent).join("");
}

// Text as words are looked for in it, character by character: small letters without accents, as some tokenizers write words.
const folded = (text) => Array.from({ length: text.length }, (_, i) => {
  const plain = text[i].normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
  return plain.length === 1 ? plain : text[i];
}).join("");

// Place the words at their positions in the text, to keep its own spaces and capitals; if one is not found, join all with spaces.
function fill(line, spans, text) {
  let at = 0;
  const parts = [], whole = folded(text), found = [];
  for (const span of spans) {
    const place = whole.indexOf(folded(span.textContent), at);
    if (place < 0) { spans.forEach((one, i) => line.append(i ? " " : "", one)); return; }
    const end = place + span.textContent.length;
    parts.push(text.slice(at, place), span);
    found.push([span, text.slice(place, end)]);
    at = end;
  }
  found.forEach(([span, own]) => { span.textContent = own; });
  line.append(...parts, text.slice(at));
}

// --- attention ---

// `data.lead` says in one sentence what looks at what, where the data is of no translation.
function attention(data, id = "attention", title = "Attention") {
  const own = section(id, title, "Which word looks at which, in every layer and head. A line is as strong as its weight, " +
    `and each head has its own colour. ${hint("Point at a word to see its links, click to keep them; the arrow keys move between words.", "Touch a word to see its links, and again to see all.")}`);
  const kinds = Object.keys(KINDS).filter((kind) => data.attention[kind]); // a language model has only the decoder's
  const isText = !data.source; // of a language model
  const words = (data.source ?? data.decoder_input).words;
  const state = { kind: kinds[0], layer: 0, heads: new Set(), averaged: false, view: "lines", unit: "words", over: null, pinned: null };
  const layersOf = () => data.attention[state.kind];
  // Of a text the middle layer: in the last ones of a language model, most heads rest on the first word.
  const middle = () => (isText ? Math.floor((layersOf().length - 1) / 2) : Math.max(0, layersOf().length - 2));
  const allHeads = () => layersOf()[state.layer].map((_, head) => head);
  const chosen = () => (state.heads.size ? [...state.heads].sort((a, b) => a - b) : allHeads());
  state.layer = middle();
  const isWhole = !data.pieces || data.pieces.shown === data.pieces.of; // of a cut text the words also look at those that are not drawn
  if (words.includes("animal") && words.includes("it")) state.pinned = { side: "query", place: words.indexOf("it") };

  const controls = element("div", { class: "controls" });
  const explained = element("p", { class: "note" });
  const stage = element("div");
  const overview = element("div", { class: "heads" });
  const status = element("p", { class: "said", "aria-live": "polite" });
  const left = element("div", {}, explained, stage, status);
  const many = data.model.num_heads > 5 ? ` many${data.model.num_heads > 10 ? " most" : ""}` : "";
  own.append(element("div", { class: "card" }, controls, element("div", { class: `attention${many}` }, left, overview)));

  const sides = () => {
    const [query, key] = state.kind === "encoder" ? [data.source, data.source]
      : state.kind === "decoder" ? [data.decoder_input, data.decoder_input] : [data.target, data.source];
    return { query, key };
  };
  const labels = (side) => (state.unit === "words" ? side.words : side.pieces.map((piece) => piece.text));
  const shownMatrix = (matrix) => {
    const { query, key } = sides();
    return state.unit === "words" ? byWords(matrix, query, key) : matrix;
  };

  // A weight as text. Two are exact, whatever the model computed: nothing looks at what comes later, and what sees one word looks at that alone.
  const shareOf = (weight, q, k) => {
    const isCausal = state.kind === "decoder";
    if (isCausal && k > q) return "0%";
    return isWhole && (isCausal ? q === 0 : labels(sides().key).length === 1) ? "100%" : percent(weight);
  };

  function drawControls() {
    const heads = element("div", { class: "chips", role: "group", "aria-label": "heads" });
    const chip = (text, pressed, colour, act) => {
      const button = element("button", { type: "button", class: "chip", "aria-pressed": String(pressed), "data-key": `head ${text}` }, element("i"), text);
      button.style.setProperty("--own", colour);
      button.addEventListener("click", () => { act(); redraw(controls, drawControls); drawAll(); });
      heads.append(button);
    };
    allHeads().forEach((head) => chip(`${head + 1}`, chosen().includes(head), colourOf(head), () => {
      if (state.heads.has(head)) state.heads.delete(head); else state.heads.add(head);
      if (state.heads.size === allHeads().length) state.heads.clear();
    }));
    chip("mean", state.averaged, "var(--accent)", () => { state.averaged = !state.averaged; });
    controls.replaceChildren(
      ...(kinds.length > 1 ? [segments("attention", kinds.map((kind) => [kind, KINDS[kind][0]]), state.kind, (kind) => {
        Object.assign(state, { kind, over: null, pinned: null });
        state.layer = middle(); state.heads.clear(); redraw(controls, drawControls); drawAll();
      })] : []),
      segments("layer", layersOf().map((_, layer) => [layer, `${layer + 1}`]), state.layer, (layer) => { state.layer = layer; drawAll(); }),
      element("div", { class: "group" }, element("span", { "aria-hidden": "true" }, "heads"), heads),
      element("div", { class: "group views" },
        segments("view", [["lines", "Lines"], ["matrix", "Matrix"]], state.view, (view) => { state.view = view; drawAll(); }),
        segments("by", [["words", "Words"], ["pieces", "Pieces"]], state.unit, (unit) => {
          Object.assign(state, { unit, over: null, pinned: null }); drawAll();
        })),
    );
  }

  // [colour, weights] for each chosen head, or for their mean
  function colouredWeights() {
    const matrices = chosen().map((head) => shownMatrix(layersOf()[state.layer][head]));
    return state.averaged ? [["var(--accent)", mean(matrices)]] : matrices.map((matrix, i) => [colourOf(chosen()[i]), matrix]);
  }

  function drawAll() { drawStage(); drawOverview(); }

  function drawStage() {
    explained.textContent = data.lead ?? (isText ? "Each word looks at itself and the words before it." : KINDS[state.kind][1]);
    if (state.view === "matrix") drawMatrix(); else drawLines();
    showStatus();
  }

  function drawLines() {
    const { query, key } = sides();
    const names = { query: labels(query), key: labels(key) };
    const width = Math.max(280, stage.clientWidth || left.clientWidth || 640);
    const size = width < 460 ? 14 : 15;
    const rowHeight = 31;
    const room = Math.min(width * 0.36, Math.max(...[...names.query, ...names.key].map((text) => widthOf(text, size))) + 26);
    const height = Math.max(names.query.length, names.key.length) * rowHeight + 6;
    const y = (side, place) => (place + 0.5 + (Math.max(names.query.length, names.key.length) - names[side].length) / 2) * rowHeight + 3;
    const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": "attention between words" });
    const links = svgElement("g", { class: "links", "aria-hidden": "true" });
    const strips = svgElement("g", { "aria-hidden": "true" });
    svg.append(strips, links);
    const rows = [];
    for (const side of ["query", "key"]) {
      names[side].forEach((text, place) => {
        const x = side === "query" ? 0 : width - room;
        const row = svgElement("g", { class: "row", tabindex: rows.length ? "-1" : "0", role: "button" });
        row.append(svgElement("rect", { class: "hit", x: x + 1, y: y(side, place) - rowHeight / 2 + 2, width: room - 2, height: rowHeight - 4, rx: 6 }),
          svgElement("text", { x: side === "query" ? room - 12 : x + 12, y: y(side, place), "text-anchor": side === "query" ? "end" : "start" },
            clipped(text, room - 22, size)));
        row.place = { side, place };
        rows.push(row);
        svg.append(row);
      });
    }
    const paint = () => paintLines({ names, links, strips, rows, width, room, rowHeight, y });
    listen(rows, paint);
    const under = element("div", { class: "ends", "aria-hidden": "true" }, element("span", {}, isText || data.lead ? "word" : KINDS[state.kind][2]), element("span", {}, KINDS[state.kind][3]));
    stage.className = "";
    stage.replaceChildren(under, svg);
    paint();
  }

  const highlighted = () => state.over ?? state.pinned;
  const isSame = (a, b) => Boolean(a && b && a.side === b.side && a.place === b.place);

  function paintLines({ names, links, strips, rows, width, room, rowHeight, y }) {
    const at = highlighted();
    const coloured = colouredWeights();
    links.replaceChildren();
    strips.replaceChildren();
    const linked = new Set();
    coloured.forEach(([colour, matrix], number) => matrix.forEach((row, q) => row.forEach((weight, k) => {
      if (weight < MIN_WEIGHT || (at && at.place !== (at.side === "query" ? q : k))) return;
      const apart = (number - (coloured.length - 1) / 2) * Math.min(2.4, 14 / coloured.length); // so that the lines of the heads do not cover each other
      const path = svgElement("path", { d: `M${room + 2} ${y("query", q)}L${width - room - 2} ${y("key", k) + apart}`,
        "stroke-opacity": Math.min(1, at ? weight * 1.15 : weight * 0.9).toFixed(3) });
      path.style.stroke = colour;
      links.append(path);
      if (!at) return;
      const other = at.side === "query" ? ["key", k] : ["query", q];
      linked.add(other.join());
      const strip = (room - 2) / coloured.length; // how much attention a word gets from each head, as in figure 3 of the paper
      const box = svgElement("rect", { x: (other[0] === "key" ? width - room + 1 : 1) + number * strip, y: y(...other) - rowHeight / 2 + 2,
        width: strip, height: rowHeight - 4, "fill-opacity": (weight * 0.55).toFixed(3) });
      box.style.fill = colour;
      strips.append(box);
    })));
    rows.forEach((row) => {
      const { side, place } = row.place;
      row.classList.toggle("on", isSame(at, row.place));
      row.classList.toggle("pinned", isSame(state.pinned, row.place));
      row.classList.toggle("faded", Boolean(at) && !isSame(at, row.place) && !linked.has(`${side},${place}`));
      row.setAttribute("aria-label", `${names[side][place]}: ${describe(row.place)}`);
      row.setAttribute("aria-pressed", String(isSame(state.pinned, row.place)));
    });
  }

  function listen(rows, paint) {
    const update = (place) => { state.over = place; paint(); showStatus(); };
    rows.forEach((row, i) => {
      row.addEventListener("mouseenter", () => update(row.place));
      row.addEventListener("mouseleave", () => update(null));
      row.addEventListener("focus", () => update(row.place));
      row.addEventListener("blur", () => update(null));
      const pin = () => { state.pinned = isSame(state.pinned, row.place) ? null : row.place; state.over = null; paint(); showStatus(); };
      row.addEventListener("click", pin);
      row.addEventListener("keydown", (event) => {
        const side = rows.filter((other) => other.place.side === row.place.side);
        const others = rows.filter((other) => other.place.side !== row.place.side);
        const here = side.indexOf(row);
        const go = { ArrowDown: side[here + 1], ArrowUp: side[here - 1], ArrowRight: others[Math.min(here, others.length - 1)],
          ArrowLeft: others[Math.min(here, others.length - 1)], Home: side[0], End: side[side.length - 1] }[event.key];
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pin(); }
        if (event.key === "Escape") { state.pinned = null; update(null); }
        if (go) {
          event.preventDefault();
          rows.forEach((other) => other.setAttribute("tabindex", other === go ? "0" : "-1"));
          go.focus();
        }
      });
    });
  }

  function describe(at) {
    const { query, key } = sides();
    const matrix = mean(colouredWeights().map(([, one]) => one));
    const shares = at.side === "query" ? matrix[at.place].map((weight, k) => [labels(key)[k], weight, shareOf(weight, at.place, k)])
      : matrix.map((row, q) => [labels(query)[q], row[at.place], shareOf(row[at.place], q, at.place)]);
    const best = shares.sort((a, b) => b[1] - a[1]).filter(([, weight]) => weight >= 0.03).slice(0, 6);
    return `${at.side === "query" ? "looks at" : "is looked at by"} ${best.map(([text, , share]) => `${text} ${share}`).join(", ")}`;
  }

  function showStatus() {
    const at = highlighted();
    const { query, key } = sides();
    const many = chosen().length > 1 ? ` (mean of ${chosen().length} heads)` : ` (head ${chosen()[0] + 1})`;
    if (state.view === "matrix") { status.textContent = pointAtCell(); return; }
    if (!at) { status.textContent = hint("Point at a word, or move between words with the arrow keys.", "Touch a word."); return; }
    const text = (at.side === "query" ? labels(query) : labels(key))[at.place];
    status.replaceChildren(element("b", {}, quoted(text)), ` ${describe(at)}${many}`);
  }

  function drawMatrix() {
    const { query, key } = sides();
    const coloured = colouredWeights();
    const colour = coloured.length === 1 ? coloured[0][0] : "var(--accent)";
    const box = matrix({ rows: labels(query), columns: labels(key), values: mean(coloured.map(([, one]) => one)), colour, status,
      width: left.clientWidth, label: "attention weights, one row per looking word", format: shareOf });
    stage.className = "matrix scroll";
    stage.replaceChildren(box);
  }

  function drawOverview() {
    const layers = layersOf();
    const heads = layers[0].length;
    const tiles = element("div", { class: "tiles" });
    tiles.style.gridTemplateColumns = `16px repeat(${heads}, minmax(${many ? 36 : 46}px, 1fr))`;
    tiles.append(element("span"), ...layers[0].map((_, head) => element("span", { class: "axis top", "aria-hidden": "true" }, `${head + 1}`)));
    layers.forEach((matrices, layer) => {
      tiles.append(element("span", { class: "axis", "aria-hidden": "true" }, `${layer + 1}`));
      matrices.forEach((weights, head) => tiles.append(tile(weights, layer, head)));
    });
    overview.replaceChildren(element("h3", {}, "All heads"), element("p", { class: "note" },
      "One row per layer, one column per head. Below each head: its entropy in bits, and how far it looks on average, in pieces."), tiles);
    paintTiles();
  }

  function tile(weights, layer, head) {
    const facts = data.heads[state.kind][layer][head];
    const canvas = element("canvas", { width: weights[0].length, height: weights.length, "aria-hidden": "true" });
    canvas.weights = weights;
    canvas.head = head;
    const pressed = layer === state.layer && state.heads.size === 1 && state.heads.has(head);
    const button = element("button", { type: "button", class: "tile", "aria-pressed": String(pressed), "data-key": `${layer} ${head}`,
      "aria-label": `layer ${layer + 1}, head ${head + 1}: entropy ${number(facts.entropy, 1)} bits, distance ${number(facts.distance, 1)}` },
      canvas, element("span", { "aria-hidden": "true" }, element("em", {}, number(facts.entropy, 1)), element("em", {}, number(facts.distance, 1))));
    button.title = `entropy ${number(facts.entropy)} bits, distance ${number(facts.distance)}`;
    button.addEventListener("click", () => {
      const again = pressed;
      state.layer = layer; state.heads.clear(); if (!again) state.heads.add(head);
      drawControls(); drawStage(); redraw(overview, drawOverview);
    });
    return button;
  }

  function paintTiles() {
    overview.querySelectorAll("canvas").forEach((canvas) => {
      const context = canvas.getContext("2d");
      context.clearRect(0, 0, canvas.width, canvas.height);
      canvas.style.color = colourOf(canvas.head); // a canvas does not resolve CSS variables, so the browser computes the colour
      context.fillStyle = getComputedStyle(canvas).color;
      canvas.weights.forEach((row, q) => row.forEach((weight, k) => {
        context.globalAlpha = Math.min(1, weight * 1.2 + 0.03);
        context.fillRect(k, q, 1, 1);
      }));
    });
  }

  drawControls();
  own.ready = () => {
    drawAll();
    let width = left.clientWidth;
    new ResizeObserver(() => {
      if (Math.abs(left.clientWidth - width) > 2) { width = left.clientWidth; drawStage(); }
    }).observe(left);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintTiles);
    document.addEventListener("regard-theme", paintTiles); // the surrounding page has switched between light and dark
  };
  return own;
}

// --- matrices: rows attend to columns ---

const pointAtCell = () => hint("Point at a cell, or move through the matrix with the arrow keys.", "Touch a cell.");

function matrix({ rows, columns, values, colour, status, label, width: free, links = [], scale = 1, extra = null, tallest = "",
  format = percent, shade = (weight) => [colour, weight * scale] }) {
  const size = 13;
  const heads = extra ? [...columns, extra] : columns;
  const room = Math.min(free < 500 ? 86 : 150, Math.max(...rows.map((text) => widthOf(text, size))) + 14);
  const cell = Math.max(16, Math.min(32, (free - room - 14) / heads.length)); // fitted to the page, but never too small to point at
  const top = Math.min(130, Math.max(...[...heads, tallest].map((text) => widthOf(text, size))) + 14);
  const gap = (k) => (extra && k === columns.length ? 8 : 0);
  const width = room + heads.length * cell + 12, height = top + rows.length * cell + 4;
  const svg = svgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "application", tabindex: "0", "aria-label": `${label}; arrow keys move between cells` });
  const cells = rows.map(() => []);
  let current = null;
  const point = (q, k) => {
    current?.classList.remove("on");
    current = cells[q]?.[k] ?? null;
    current?.classList.add("on");
    if (current) status.replaceChildren(element("b", {}, quoted(rows[q])), ` → ${quoted(heads[k])} ${format(values[q][k], q, k)}`);
  };
  let at = [0, 0];
  svg.addEventListener("focus", () => point(...at));
  svg.addEventListener("blur", () => point(-1, -1));
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    if (!move) return;
    event.preventDefault();
    const next = [at[0] + move[0], at[1] + move[1]];
    if (cells[next[0]]?.[next[1]]) { at = next; point(...at); }
  });
  heads.forEach((text, k) => svg.append(svgElement("text", { class: extra && k === columns.length ? "faint" : "",
    transform: `translate(${room + (k + 0.5) * cell + gap(k)} ${top - 7}) rotate(-90)` }, clipped(text, top - 10, size))));
  rows.forEach((text, q) => {
    svg.append(svgElement("text", { x: room - 8, y: top + (q + 0.5) * cell, "text-anchor": "end" }, clipped(text, room - 10, size)));
    values[q].forEach((weight, k) => {
      const rect = svgElement("rect", { class: "cell", x: room + k * cell + gap(k), y: top + q * cell, width: cell, height: cell, rx: 3,
        "fill-opacity": Math.min(1, shade(weight)[1]).toFixed(3) });
      rect.style.fill = shade(weight)[0];
      rect.addEventListener("mouseenter", () => point(q, k));
      rect.addEventListener("mouseleave", () => point(-1, -1));
      cells[q].push(rect);
      svg.append(rect);
    });
  });
  links.forEach(([q, k]) => svg.append(svgElement("rect", { class: "link", x: room + k * cell + 1.5, y: top + q * cell + 1.5, width: cell - 3, height: cell - 3, rx: 3 })));
  return svg;
}

// --- word by word ---

function steps(data, force) {
  const own = section("words", "Word by word", "What the model considered at every piece of the translation, and how likely each candidate was. " +
    "The piece in the translation is highlighted.");
  const status = element("p", { class: "said", "aria-live": "polite" }, "Choose another piece to continue from there.");
  const grid = [];
  const choose = (place, candidate) => {
    const before = data.steps.slice(0, place).map((step) => step.text);
    const ends = candidate.id === data.target.pieces.at(-1).id;
    const text = joinPieces(ends ? before : [...before, candidate.text]);
    if (force) { force(text, ends); return; }
    const command = ["regard explain -m MODEL", shell(data.text), ends ? "--target" : "--prefix", shell(text), "-o page.html"].join(" ");
    status.replaceChildren("To continue from there, with the model of this page as MODEL: ", element("code", {}, command));
  };
  const list = element("ol", { class: "steps" });
  data.steps.forEach((step, place) => {
    const piece = data.target.pieces[place];
    const shown = step.candidates.some((candidate) => candidate.id === piece.id) ? step.candidates
      : [...step.candidates, { id: piece.id, text: step.text, probability: Math.exp(step.log_prob) }];
    const lines = shown.map((candidate) => {
      const bar = element("i", { "aria-hidden": "true" });
      bar.style.width = `${(candidate.probability * 100).toFixed(1)}%`;
      const button = element("button", { type: "button", class: candidate.id === piece.id ? "chosen" : "" }, bar,
        element("span", { dir: "auto" }, visible(candidate.text)), element("span", {}, percent(candidate.probability)));
      button.addEventListener("click", () => choose(place, candidate));
      return button;
    });
    grid.push(lines);
    const tag = step.forced ? "given" : step.rank > 1 ? `choice no. ${step.rank}` : "";
    list.append(element("li", { class: "step" }, element("header", {}, element("b", { dir: "auto" }, piece.text),
      element("span", { title: "log-probability" }, number(step.log_prob))), element("span", { class: "tag" }, tag), element("ol", {}, ...lines.map((line) => element("li", {}, line)))));
  });
  roving(grid.flat(), (item, key) => {
    const column = grid.findIndex((lines) => lines.includes(item)), row = grid[column].indexOf(item);
    return { ArrowDown: grid[column][row + 1], ArrowUp: grid[column][row - 1], ArrowRight: grid[column + 1]?.[Math.min(row, grid[column + 1].length - 1)],
      ArrowLeft: grid[column - 1]?.[Math.min(row, grid[column - 1].length - 1)] }[key];
  });
  own.append(element("div", { class: "card" }, element("div", { class: "scroll", role: "region", "aria-label": "candidates at every step" }, list), status));
  return own;
}

// Joins pieces to text. Byte pieces, which spell characters that the vocabulary lacks, are decoded.
function joinPieces(texts) {
  const bytes = texts.flatMap((text) => {
    const byte = /^<0x([0-9A-F]{2})>$/.exec(text);
    return byte ? [parseInt(byte[1], 16)] : [...new TextEncoder().encode(text)];
  });
  return new TextDecoder().decode(new Uint8Array(bytes)).trim();
}

const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// A piece that continues a word has no leading space: mark it with a dot.
const visible = (text) => (text.startsWith(" ") ? text.slice(1) || "␣" : /^<.*>$/.test(text) ? text : `·${text}`);

// --- the beam ---

function beam(data) {
  const nodes = data.beam;
  const own = section("beam", "Beam", `At every step the search extends each hypothesis by one piece, takes the ${2 * data.model.beam} best candidates, keeps ` +
    `the best ${data.model.beam} unfinished ones, and drops the rest. Best on top.` + (data.given ? " This is the model's own search, not the given translation." : ""));
  const best = new Set();
  for (let n = nodes.findIndex((node) => node.rank === 1); n >= 0; n = nodes[n].parent) best.add(n);
  const status = element("p", { class: "said", "aria-live": "polite" }, hint("Point at a hypothesis, or move through the tree with the arrow keys.", "Touch a hypothesis."));
  const stage = element("div", { class: "scroll" });
  const check = element("input", { type: "checkbox" });
  check.checked = true;
  const legend = element("div", { class: "legend" }, element("b", {}, "■ best"), element("span", {}, "□ kept"),
    element("span", { class: "finished" }, "⏎ finished, with its rank"), element("span", {}, "plain: dropped"), element("label", {}, check, "show dropped"));
  const draw = () => stage.replaceChildren(trellis(data, nodes, best, status, check.checked));
  check.addEventListener("change", draw);
  own.append(element("div", { class: "card beam" }, legend, stage, status, finishedTable(nodes)));
  own.ready = draw;
  return own;
}

const hypothesis = (nodes, number) => {
  const texts = [];
  for (let n = number; nodes[n].parent >= 0; n = nodes[n].parent) if (!(nodes[n].fate === "finished" && n === number)) texts.unshift(nodes[n].text);
  return joinPieces(texts);
};

function finishedTable(nodes) {
  const body = element("tbody");
  nodes.map((node, n) => [node, n]).filter(([node]) => node.fate === "finished")
    .sort(([a], [b]) => b.score - a.score)
    .forEach(([node, n]) => body.append(element("tr", {}, element("td", { class: "number" }, node.rank ? `${node.rank}` : "–"),
      element("td", { dir: "auto" }, hypothesis(nodes, n)), element("td", { class: "number wide" }, number(node.log_prob)), element("td", { class: "number" }, number(node.score, 3)))));
  const heads = ["#", "finished", "log-probability", "score"].map((text, i) => element("th", { class: ["number", "", "number wide", "number"][i], scope: "col" }, text));
  return element("div", { class: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body));
}

function trellis(data, nodes, best, status, withDropped) {
  const shown = nodes.map((node, n) => n).filter((n) => withDropped || nodes[n].fate !== "dropped");
  const count = Math.max(...nodes.map((node) => node.step)) + 1;
  const label = (n) => (nodes[n].parent < 0 ? "start" : nodes[n].fate === "finished" ? `⏎ ${nodes[n].rank ?? ""}` : visible(nodes[n].text));
  const rowHeight = 29, gap = 34;
  const widths = Array.from({ length: count }, (_, step) => Math.max(34, ...shown.filter((n) => nodes[n].step === step).map((n) => Math.min(150, widthOf(label(n), 13) + 20))));
  const lefts = widths.map((_, step) => 6 + widths.slice(0, step).reduce((sum, width) => sum + width + gap, 0));
  const columns = Array.from({ length: count }, (_, step) => shown.filter((n) => nodes[n].step === step).sort((a, b) => nodes[a].place - nodes[b].place));
  const rowOf = new Map();
  columns.forEach((column) => column.forEach((n, row) => rowOf.set(n, row)));
  const height = Math.max(...columns.map((column) => column.length)) * rowHeight + 26;
  const width = lefts[count - 1] + widths[count - 1] + 8;
  const y = (n) => rowOf.get(n) * rowHeight + rowHeight / 2 + 22;
  const svg = svgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "the beam search as a tree" });
  columns.slice(1).forEach((_, step) => svg.append(svgElement("text", { class: "step-number", x: lefts[step + 1] + widths[step + 1] / 2, y: 9 }, `${step + 1}`)));
  const edges = new Map(), marks = new Map();
  const order = [...shown].sort((a, b) => Number(best.has(a)) - Number(best.has(b)));
  for (const n of order) {
    const { parent, step, fate } = nodes[n];
    if (parent < 0) continue;
    const x1 = lefts[step - 1] + widths[step - 1], x2 = lefts[step];
    const edge = svgElement("path", { class: `edge ${fate} ${best.has(n) ? "best" : ""}`, d: `M${x1} ${y(parent)}C${x1 + gap / 2} ${y(parent)} ${x2 - gap / 2} ${y(n)} ${x2} ${y(n)}` });
    edges.set(n, edge);
    svg.append(edge);
  }
  const path = (number) => { const line = []; for (let n = number; n >= 0; n = nodes[n].parent) line.push(n); return line; };
  const mark = (number) => {
    const line = new Set(number === null ? [] : path(number));
    edges.forEach((edge, n) => edge.classList.toggle("on", line.has(n)));
    marks.forEach((node, n) => node.classList.toggle("on", line.has(n)));
    if (number !== null) status.replaceChildren(element("b", {}, quoted(hypothesis(nodes, number) || "start")), ` ${fateOf(nodes[number])}, log-probability ${scores(nodes[number])}`);
  };
  const scores = (node) => number(node.log_prob) + (node.score === null ? "" : `, score ${number(node.score, 3)}`);
  for (const n of shown) {
    const { step, fate } = nodes[n];
    const node = svgElement("g", { class: `node ${fate} ${best.has(n) ? "best" : ""}`, tabindex: n === 0 ? "0" : "-1", role: "button",
      "aria-label": `${hypothesis(nodes, n) || "start"}, ${fateOf(nodes[n])}, log-probability ${scores(nodes[n])}` });
    node.append(svgElement("rect", { x: lefts[step], y: y(n) - 11, width: widths[step], height: 22, rx: 11 }),
      svgElement("text", { x: lefts[step] + widths[step] / 2, y: y(n) }, clipped(label(n), 134, 13)));
    node.addEventListener("mouseenter", () => mark(n));
    node.addEventListener("mouseleave", () => mark(null));
    node.addEventListener("focus", () => mark(n));
    node.addEventListener("keydown", (event) => {
      const column = columns[step], children = shown.filter((child) => nodes[child].parent === n);
      const go = { ArrowLeft: nodes[n].parent, ArrowRight: children.find((child) => best.has(child)) ?? children[0],
        ArrowUp: column[rowOf.get(n) - 1], ArrowDown: column[rowOf.get(n) + 1] }[event.key];
      if (go === undefined || go < 0) return;
      event.preventDefault();
      marks.forEach((other, m) => other.setAttribute("tabindex", m === go ? "0" : "-1"));
      marks.get(go).focus();
    });
    marks.set(n, node);
    svg.append(node);
  }
  return svg;
}

function fateOf(node) {
  if (node.parent < 0) return "the start";
  if (node.fate === "finished") return node.rank ? `finished, rank ${node.rank}` : "finished, displaced by better ones";
  return { kept: "kept", open: "still open at the end", dropped: "dropped" }[node.fate];
}

// --- saliency and attention ---

function saliency(data) {
  const own = section("saliency", "Saliency and attention", "Two answers to one question: which source words did each target word come from?");
  const all = data.attention.cross.flat();
  const rows = data.target.words, columns = data.source.words;
  const attended = byWords(mean(all), data.target, data.source);
  const source = byWords(data.saliency.source, data.target, data.source, true);
  const before = byWords(data.saliency.decoder_input, data.target, data.decoder_input, true);
  const salient = source.map((row, q) => {
    const own = row.map(Math.abs), sum = own.reduce((a, b) => a + b, 0) || 1;
    const rest = before[q].reduce((a, b) => a + Math.abs(b), 0);
    return [...own.map((value) => value / sum), rest / (rest + sum)];
  });
  const status = element("p", { class: "said", "aria-live": "polite" }, pointAtCell());
  const half = (title, text) => {
    const stage = element("div", { class: "matrix scroll" });
    return [stage, element("div", {}, element("h3", {}, title), element("p", { class: "note" }, text), stage)];
  };
  const [first, attentionHalf] = half("Cross-attention", `Mean over all layers and heads. Framed: the word alignment, from ${alignedBy(data.alignment)}.`);
  const [second, saliencyHalf] = half("Saliency", "Each source word's share. Last column: how much came from the target so far instead.");
  own.append(element("div", { class: "card" }, element("div", { class: "pair" }, attentionHalf, saliencyHalf), status,
    element("p", { class: "caution" }, data.caution), element("p", { class: "note method" }, `Saliency here is ${data.saliency_method}.`)));
  const extra = "target so far";
  const draw = () => {
    const shared = { rows, columns, status, scale: 1.3, width: first.clientWidth, tallest: extra };
    first.replaceChildren(matrix({ ...shared, values: attended, colour: "var(--accent)", links: data.alignment.links, label: "mean cross-attention, target words by source words" }));
    second.replaceChildren(matrix({ ...shared, values: salient, colour: "var(--warm)", extra, label: "saliency, target words by source words" }));
  };
  own.ready = () => {
    draw();
    let width = first.clientWidth;
    new ResizeObserver(() => { if (Math.abs(first.clientWidth - width) > 2) { width = first.clientWidth; draw(); } }).observe(first);
  };
  return own;
}

// --- the whole page ---

// On a page with a server, `force(text, ends)` is called when the user chooses another piece (`text` is the translation up to there, and
// complete if `ends`), and `edit(before, word)` when the user replaces the word after `before`.
function show(place, data, force = null, edit = null) {
  const parts = [attention(data), steps(data, force), beam(data), saliency(data)];
  const names = ["Attention", "Word by word", "Beam", "Saliency"];
  const nav = element("nav", { "aria-label": "sections" }, ...parts.map((part, i) => element("a", { href: `#${part.id}` }, names[i])));
  const footer = element("footer", {}, "Made with Regard.");
  place.replaceChildren(element("main", {}, headline(data, edit), nav, ...parts, footer));
  parts.forEach((part) => part.ready?.());
  document.title = `${data.text} · Regard`;
}

globalThis.regardExplain = { show, attention, element, fill, hint, matrix, number, percent, pointAtCell, quoted, roving, section, segments, svgElement, visible, widthOf };
const embedded = document.getElementById("explanation");
const page = embedded && JSON.parse(embedded.textContent);
if (page && !page.readings) show(document.getElementById("explain"), page); // explain_encoder.js draws those of encoders
})();
