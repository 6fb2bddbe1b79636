// The user's terms for a language pair: a glossary and protected words. They are stored in the browser, and sent with a text that
// contains them. Terms are only ever inserted as text.

const at = (id) => document.getElementById(id);
const SKIPPED = /^(#|\s*$)/;
const CONTROL = /[\u0000-\u001f\u007f-\u009f\u2028\u2029]/; // including tabs and line breaks

// Whether a term occurs in a text as whole words, in any case.
export function hasTerm(text, term) {
  const escaped = term.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
  return new RegExp(`(?<![\\p{L}\\p{N}])${escaped}(?![\\p{L}\\p{N}])`, "iu").test(text);
}

// `onChange()` is called when the terms change, since translations may change with them.
export function startTerms(settings, onChange) {
  const { element, quoted } = globalThis.regardExplain;
  const panel = at("terms"), button = at("terms-button");
  const fields = { source: at("term-source"), target: at("term-target"), keep: at("term-keep") };
  let pair = null; // { source, target, sourceName, targetName } with a known source
  let terms = { glossary: [], keep: [] };
  let isDrawn = false;

  // --- storage ---

  const storageKey = () => `regard-terms ${JSON.stringify([pair.source, pair.target])}`;
  const isTerm = (one) => typeof one === "string" && one.trim() === one && one !== "" && one.length <= settings.termCharacters && !CONTROL.test(one);
  const unstored = new Map(); // by storage key: terms that the browser could not store

  // Anything malformed in the storage is ignored.
  function load() {
    terms = { glossary: [], keep: [] };
    if (!pair) return;
    if (unstored.has(storageKey())) { terms = unstored.get(storageKey()); return; }
    try {
      const stored = JSON.parse(localStorage.getItem(storageKey())) ?? {};
      if (Array.isArray(stored.glossary)) terms.glossary = stored.glossary.filter((one) => Array.isArray(one) && one.length === 2 && one.every(isTerm)).slice(0, settings.terms);
      if (Array.isArray(stored.keep)) terms.keep = stored.keep.filter(isTerm).slice(0, settings.terms - terms.glossary.length);
    } catch { /* storage is disabled, or does not hold JSON */ }
  }

  function save() {
    unstored.delete(storageKey());
    try {
      if (size()) localStorage.setItem(storageKey(), JSON.stringify(terms)); else localStorage.removeItem(storageKey());
    } catch { // storage is full or disabled: the terms are lost when the page closes
      unstored.set(storageKey(), terms);
      showStatus("This browser cannot store the terms; they are lost when you close this page. Export them.");
    }
  }

  const size = () => terms.glossary.length + terms.keep.length;
  const has = (source, target) => terms.glossary.some((one) => one[0] === source && one[1] === target);

  function update() {
    save();
    draw();
    onChange();
  }

  // --- adding ---

  // Why a term with these texts cannot be added, or an empty string.
  function problemWith(...texts) {
    if (!texts.every((one) => one.length <= settings.termCharacters)) return `A term may have at most ${settings.termCharacters} characters.`;
    return size() >= settings.terms ? `There may be at most ${settings.terms} terms.` : "";
  }

  const clean = (text) => text.replace(new RegExp(CONTROL, "g"), " ").trim(); // pasted text may contain tabs

  function addEntry() {
    const [source, target] = [clean(fields.source.value), clean(fields.target.value)];
    if (!source || !target) { (source ? fields.target : fields.source).focus(); return; }
    const problem = problemWith(source, target);
    showStatus(problem);
    if (problem) return;
    if (!has(source, target)) terms.glossary.unshift([source, target]);
    fields.source.value = fields.target.value = "";
    update();
    fields.source.focus();
  }

  function addKept() {
    const word = clean(fields.keep.value);
    if (!word) { fields.keep.focus(); return; }
    const problem = problemWith(word);
    showStatus(problem);
    if (problem) return;
    if (!terms.keep.includes(word)) terms.keep.unshift(word);
    fields.keep.value = "";
    update();
    fields.keep.focus();
  }

  // Each line is a term, a tab and its translation, as for `regard translate --glossary`; if both are the same, the word is protected.
  async function importFrom(file) {
    const added = { glossary: [], keep: [] };
    const lines = file.size > 1_000_000 ? null : (await file.text()).split(/\r\n|[\n\r]/);
    if (!lines) { showStatus("A file of terms may be at most 1 MB."); return; }
    for (const [i, line] of lines.entries()) {
      if (SKIPPED.test(line)) continue;
      const sides = line.replace(/^\ufeff/, "").split("\t").map((side) => side.trim());
      if (sides.length !== 2 || !sides.every(isTerm)) { showStatus(`Line ${i + 1} must be a term, a tab and its translation, each of at most ${settings.termCharacters} characters.`); return; }
      const [source, target] = sides;
      if (source === target) { if (!terms.keep.includes(source) && !added.keep.includes(source)) added.keep.push(source); }
      else if (!has(source, target) && !added.glossary.some((one) => one[0] === source && one[1] === target)) added.glossary.push([source, target]);
    }
    const count = added.glossary.length + added.keep.length;
    if (size() + count > settings.terms) { showStatus(`There may be at most ${settings.terms} terms; the file has ${count} more.`); return; }
    terms = { glossary: [...added.glossary, ...terms.glossary], keep: [...added.keep, ...terms.keep] };
    showStatus(`${count} ${count === 1 ? "term" : "terms"} added.`);
    update();
  }

  // A leading space keeps a term that begins with # from being read as a comment.
  const line = (sides) => `${sides[0].startsWith("#") ? " " : ""}${sides.join("\t")}`;

  function exportAll() {
    const lines = [...terms.glossary, ...terms.keep.map((word) => [word, word])].map((sides) => `${line(sides)}\n`);
    const link = element("a", { href: URL.createObjectURL(new Blob(lines, { type: "application/octet-stream" })), download: `terms.${pair.source}-${pair.target}.tsv` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // --- panel ---

  function draw() {
    button.replaceChildren(size() ? "Terms " : "Terms", ...(size() ? [element("span", { class: "badge" }, String(size()))] : []));
    at("terms-title").textContent = pair ? `Terms, ${pair.sourceName} → ${pair.targetName}` : "Terms";
    at("terms-unknown").hidden = Boolean(pair);
    at("terms-body").hidden = !pair;
    at("terms-export").hidden = !size();
    at("terms-import").hidden = !pair;
    at("glossary-form").hidden = at("glossary-list").hidden = !settings.glossary;
    at("no-glossary").hidden = settings.glossary;
    at("term-source-name").textContent = pair ? `In ${pair.sourceName}` : "";
    at("term-target-name").textContent = pair ? `In ${pair.targetName}` : "";
    drawList(at("glossary-list"), terms.glossary, fields.source, ([source, target]) => [
      element("span", { dir: "auto", lang: pair.source }, source), element("span", { class: "to", "aria-label": "is" }, "→"), element("span", { dir: "auto", lang: pair.target }, target)], ([source]) => source);
    drawList(at("keep-list"), terms.keep, fields.keep, (word) => [element("span", { dir: "auto" }, word)], (word) => word);
  }

  function drawList(list, entries, field, render, nameOf) {
    list.replaceChildren(...entries.map((entry, i) => {
      const remove = element("button", { type: "button", class: "remove", "aria-label": `remove ${quoted(nameOf(entry))}`, title: "remove" }, "×");
      remove.addEventListener("click", () => {
        entries.splice(i, 1);
        showStatus("");
        update();
        (list.querySelectorAll(".remove")[Math.min(i, entries.length - 1)] ?? field).focus();
      });
      return element("li", {}, ...render(entry), remove);
    }));
  }

  const showStatus = (message) => { at("terms-said").textContent = message; };

  function open(isOpen) {
    panel.hidden = !isOpen;
    button.setAttribute("aria-expanded", String(isOpen));
    showStatus("");
    if (isOpen) (settings.glossary ? fields.source : fields.keep).focus({ preventScroll: true });
    if (isOpen) panel.scrollIntoView({ block: "nearest" });
  }

  button.addEventListener("click", () => open(panel.hidden));
  panel.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.stopPropagation(); open(false); button.focus(); } });
  at("glossary-form").addEventListener("submit", (event) => { event.preventDefault(); addEntry(); });
  at("keep-form").addEventListener("submit", (event) => { event.preventDefault(); addKept(); });
  at("terms-import").addEventListener("click", () => at("terms-file").click());
  at("terms-file").addEventListener("change", async () => { const [file] = at("terms-file").files; at("terms-file").value = ""; if (file) await importFrom(file); });
  at("terms-export").addEventListener("click", exportAll);
  addEventListener("storage", (event) => { if (pair && (event.key === storageKey() || event.key === null)) { load(); draw(); onChange(); } }); // another tab

  const occursIn = (text) => { const lower = text.toLowerCase(); return (term) => lower.includes(term.toLowerCase()); };

  return {
    toggle: () => open(panel.hidden),
    // Switches to a language pair, or to null while the source language is not detected yet. Returns whether the terms may differ.
    setPair(known) {
      if (isDrawn && known?.source === pair?.source && known?.target === pair?.target) return false;
      isDrawn = true;
      const had = size();
      pair = known;
      load();
      draw();
      return Boolean(had || size());
    },
    // The fields of a JSON request: the terms that occur in the text. Empty fields are left out.
    jsonFields(text) {
      const isUsed = occursIn(text);
      const glossary = Object.create(null); // a term may be named like a property of every object
      if (settings.glossary) for (const [source, target] of terms.glossary) if (isUsed(source)) (glossary[source] ??= []).push(target);
      const keep = terms.keep.filter(isUsed);
      return { ...(Object.keys(glossary).length ? { glossary } : {}), ...(keep.length ? { keep } : {}) };
    },
    // The fields of a form: all terms.
    formFields() {
      const glossary = settings.glossary ? terms.glossary.map(line).join("\n") : "";
      return { ...(glossary ? { glossary } : {}), ...(terms.keep.length ? { keep: terms.keep.join("\n") } : {}) };
    },
  };
}
