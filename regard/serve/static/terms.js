// A reader's own terms for a pair of languages: what a word must be called, and words that are not translated. They stay in this
// browser and go to the server with a text that has them. Terms are only ever text here.

const at = (id) => document.getElementById(id);
const SKIPPED = /^(#|\s*$)/;
const ODD = /[\u0000-\u001f\u007f-\u009f\u2028\u2029]/; // tabs, line breaks and the like

// `changed()` hears that a translation may be another now.
export function startTerms(settings, changed) {
  const { element, quoted } = globalThis.regardExplain;
  const panel = at("terms"), button = at("terms-button");
  const fields = { source: at("term-source"), target: at("term-target"), keep: at("term-keep") };
  let pair = null; // { source, target, sourceName, targetName } with a known source
  let terms = { glossary: [], keep: [] };
  let isDrawn = false;

  // --- keeping ---

  const name = () => `regard-terms ${JSON.stringify([pair.source, pair.target])}`;
  const isTerm = (one) => typeof one === "string" && one.trim() === one && one !== "" && one.length <= settings.termCharacters && !ODD.test(one);
  const unkept = new Map(); // by name: what the browser did not take

  // Whatever lies there: only what is well formed is taken.
  function load() {
    terms = { glossary: [], keep: [] };
    if (!pair) return;
    if (unkept.has(name())) { terms = unkept.get(name()); return; }
    try {
      const stored = JSON.parse(localStorage.getItem(name())) ?? {};
      if (Array.isArray(stored.glossary)) terms.glossary = stored.glossary.filter((one) => Array.isArray(one) && one.length === 2 && one.every(isTerm)).slice(0, settings.terms);
      if (Array.isArray(stored.keep)) terms.keep = stored.keep.filter(isTerm).slice(0, settings.terms - terms.glossary.length);
    } catch { /* storage is switched off, or something else lies there */ }
  }

  function save() {
    unkept.delete(name());
    try {
      if (size()) localStorage.setItem(name(), JSON.stringify(terms)); else localStorage.removeItem(name());
    } catch { // storage is full or switched off: the terms live as long as the page
      unkept.set(name(), terms);
      say("This browser cannot store the terms; they are lost when you close this page. Export them.");
    }
  }

  const size = () => terms.glossary.length + terms.keep.length;
  const has = (source, target) => terms.glossary.some((one) => one[0] === source && one[1] === target);

  function update() {
    save();
    draw();
    changed();
  }

  // --- adding ---

  // Why these cannot be taken; empty where they can.
  function refusal(...given) {
    if (!given.every((one) => one.length <= settings.termCharacters)) return `A term may have at most ${settings.termCharacters} characters.`;
    return size() >= settings.terms ? `There may be at most ${settings.terms} terms.` : "";
  }

  const clean = (text) => text.replace(new RegExp(ODD, "g"), " ").trim(); // what was pasted may have tabs in it

  function addEntry() {
    const [source, target] = [clean(fields.source.value), clean(fields.target.value)];
    if (!source || !target) { (source ? fields.target : fields.source).focus(); return; }
    const why = refusal(source, target);
    say(why);
    if (why) return;
    if (!has(source, target)) terms.glossary.unshift([source, target]);
    fields.source.value = fields.target.value = "";
    update();
    fields.source.focus();
  }

  function addKept() {
    const word = clean(fields.keep.value);
    if (!word) { fields.keep.focus(); return; }
    const why = refusal(word);
    say(why);
    if (why) return;
    if (!terms.keep.includes(word)) terms.keep.unshift(word);
    fields.keep.value = "";
    update();
    fields.keep.focus();
  }

  // A line is a term, a tab and what it must be called, as `regard translate --glossary` reads it; where both are the same word, it is
  // one that is not translated.
  async function read(file) {
    const found = { glossary: [], keep: [] };
    const lines = file.size > 1_000_000 ? null : (await file.text()).split(/\r\n|[\n\r]/);
    if (!lines) { say("A file of terms may be at most 1 MB."); return; }
    for (const [i, line] of lines.entries()) {
      if (SKIPPED.test(line)) continue;
      const sides = line.replace(/^\ufeff/, "").split("\t").map((side) => side.trim());
      if (sides.length !== 2 || !sides.every(isTerm)) { say(`Line ${i + 1} must be a term, a tab and its translation, each of at most ${settings.termCharacters} characters.`); return; }
      const [source, target] = sides;
      if (source === target) { if (!terms.keep.includes(source) && !found.keep.includes(source)) found.keep.push(source); }
      else if (!has(source, target) && !found.glossary.some((one) => one[0] === source && one[1] === target)) found.glossary.push([source, target]);
    }
    const count = found.glossary.length + found.keep.length;
    if (size() + count > settings.terms) { say(`There may be at most ${settings.terms} terms; the file has ${count} more.`); return; }
    terms = { glossary: [...found.glossary, ...terms.glossary], keep: [...found.keep, ...terms.keep] };
    say(`${count} ${count === 1 ? "term" : "terms"} added.`);
    update();
  }

  // A line that begins with # is a comment, one that begins with a space before it is not.
  const line = (sides) => `${sides[0].startsWith("#") ? " " : ""}${sides.join("\t")}`;

  function write() {
    const lines = [...terms.glossary, ...terms.keep.map((word) => [word, word])].map((sides) => `${line(sides)}\n`);
    const link = element("a", { href: URL.createObjectURL(new Blob(lines, { type: "application/octet-stream" })), download: `terms.${pair.source}-${pair.target}.tsv` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // --- showing ---

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
    list(at("glossary-list"), terms.glossary, fields.source, ([source, target]) => [
      element("span", { dir: "auto", lang: pair.source }, source), element("span", { class: "to", "aria-label": "is" }, "→"), element("span", { dir: "auto", lang: pair.target }, target)], ([source]) => source);
    list(at("keep-list"), terms.keep, fields.keep, (word) => [element("span", { dir: "auto" }, word)], (word) => word);
  }

  function list(place, entries, field, shown, called) {
    place.replaceChildren(...entries.map((entry, i) => {
      const remove = element("button", { type: "button", class: "remove", "aria-label": `remove ${quoted(called(entry))}`, title: "remove" }, "×");
      remove.addEventListener("click", () => {
        entries.splice(i, 1);
        say("");
        update();
        (place.querySelectorAll(".remove")[Math.min(i, entries.length - 1)] ?? field).focus();
      });
      return element("li", {}, ...shown(entry), remove);
    }));
  }

  const say = (message) => { at("terms-said").textContent = message; };

  function open(is) {
    panel.hidden = !is;
    button.setAttribute("aria-expanded", String(is));
    say("");
    if (is) (settings.glossary ? fields.source : fields.keep).focus({ preventScroll: true });
    if (is) panel.scrollIntoView({ block: "nearest" });
  }

  button.addEventListener("click", () => open(panel.hidden));
  panel.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.stopPropagation(); open(false); button.focus(); } });
  at("glossary-form").addEventListener("submit", (event) => { event.preventDefault(); addEntry(); });
  at("keep-form").addEventListener("submit", (event) => { event.preventDefault(); addKept(); });
  at("terms-import").addEventListener("click", () => at("terms-file").click());
  at("terms-file").addEventListener("change", async () => { const [file] = at("terms-file").files; at("terms-file").value = ""; if (file) await read(file); });
  at("terms-export").addEventListener("click", write);
  addEventListener("storage", (event) => { if (pair && (event.key === name() || event.key === null)) { load(); draw(); changed(); } }); // another tab

  const stands = (text) => { const lower = text.toLowerCase(); return (term) => lower.includes(term.toLowerCase()); };

  return {
    toggle: () => open(panel.hidden),
    // The pair that is translated; one whose source is to be detected has no terms before it is. Says whether there are others now.
    use(known) {
      if (isDrawn && known?.source === pair?.source && known?.target === pair?.target) return false;
      isDrawn = true;
      const had = size();
      pair = known;
      load();
      draw();
      return Boolean(had || size());
    },
    // What a request says of them: those that the text has, or all for null. Nothing where there are none.
    asked(text) {
      const isThere = text === null ? () => true : stands(text);
      const glossary = Object.create(null); // a term may be called like something that every object has
      if (settings.glossary) for (const [source, target] of terms.glossary) if (isThere(source)) (glossary[source] ??= []).push(target);
      const keep = terms.keep.filter(isThere);
      return { ...(Object.keys(glossary).length ? { glossary } : {}), ...(keep.length ? { keep } : {}) };
    },
    // The same for a form.
    lines() {
      const glossary = settings.glossary ? terms.glossary.map(line).join("\n") : "";
      return { ...(glossary ? { glossary } : {}), ...(terms.keep.length ? { keep: terms.keep.join("\n") } : {}) };
    },
  };
}
