// The texts that were translated here before. They are stored in this browser only, can be deleted, and storing can be switched off.

const at = (id) => document.getElementById(id);
const KEY = "regard-history", OFF = "regard-history-off";
const MOST = 50; // texts
const MOST_CHARACTERS = 300_000; // of all of them together: browsers store about five million

const isEntry = (one) => ["source", "target", "text", "translation"].every((name) => typeof one?.[name] === "string") && typeof one.time === "number"
  && Array.isArray(one.edits) && one.edits.every((edit) => Array.isArray(edit) && Number.isInteger(edit[0]) && typeof edit[1] === "string");
const isSame = (one, other) => one.source === other.source && one.target === other.target && one.text === other.text;

// Whether a text is another one's continuation or correction, so that it takes its place.
export function continues(text, old) {
  const shorter = Math.min(text.length, old.length);
  let start = 0, end = 0;
  while (start < shorter && text[start] === old[start]) start += 1;
  while (end < shorter - start && text[text.length - 1 - end] === old[old.length - 1 - end]) end += 1;
  return 2 * (start + end) > shorter;
}

// `open(entry)` shows a text again; `names` are the languages' names by code.
export function startHistory({ open, names }) {
  const { element, quoted } = globalThis.regardExplain;
  const panel = at("history"), button = at("history-button"), list = at("history-list");
  let current = null; // the entry of the text that is being worked on
  let unsaved = null, timer = 0;

  // --- storage ---

  // Anything malformed in the storage is ignored.
  function load() {
    try {
      const stored = JSON.parse(localStorage.getItem(KEY)) ?? [];
      return Array.isArray(stored) ? stored.filter(isEntry).slice(0, MOST) : [];
    } catch { return []; }
  }

  function store(entries) {
    let characters = 0;
    const kept = entries.slice(0, MOST).filter((one) => { characters += one.text.length + one.translation.length; return characters <= MOST_CHARACTERS; });
    try {
      if (kept.length) localStorage.setItem(KEY, JSON.stringify(kept)); else localStorage.removeItem(KEY);
      showStatus("");
    } catch { showStatus("This browser cannot store a history."); }
    draw();
  }

  function isOff() {
    try { return localStorage.getItem(OFF) !== null; } catch { return true; }
  }

  function save() {
    clearTimeout(timer);
    const entry = unsaved;
    unsaved = null;
    if (!entry || isOff()) return;
    const others = load().filter((one) => !isSame(one, entry) && !(current && isSame(one, current)));
    current = entry;
    store([entry, ...others]);
  }

  // --- panel ---

  function draw() {
    if (panel.hidden) return;
    const entries = load();
    list.replaceChildren(...entries.map((entry, i) => {
      const shown = element("button", { type: "button", class: "past" }, element("span", { dir: "auto", lang: entry.source }, entry.text.slice(0, 200)),
        element("span", { dir: "auto", lang: entry.target }, entry.translation.slice(0, 200)),
        element("span", { class: "when" }, `${names[entry.source] ?? entry.source} → ${names[entry.target] ?? entry.target}, ${new Date(entry.time).toLocaleString([], { dateStyle: "medium", timeStyle: "short" })}`));
      shown.addEventListener("click", () => { save(); current = entry; open(entry); });
      const remove = element("button", { type: "button", class: "remove", "aria-label": `remove ${quoted(entry.text.slice(0, 40))} from the history`, title: "remove" }, "×");
      remove.addEventListener("click", () => {
        store(load().filter((one) => !isSame(one, entry)));
        (list.querySelectorAll(".remove")[Math.min(i, list.childElementCount - 1)] ?? at("history-off")).focus();
      });
      return element("li", {}, shown, remove);
    }));
    at("history-delete").hidden = !entries.length;
    at("history-delete").textContent = "Delete all";
    at("history-off").textContent = isOff() ? "Switch on" : "Switch off";
    at("history-note").textContent = isOff() ? `The history is off: new texts are not kept.${entries.length ? " These are from before." : ""}`
      : `The last ${MOST} texts are kept in this browser, and nowhere else.${entries.length ? "" : " There are none yet."}`;
  }

  const showStatus = (message) => { at("history-said").textContent = message; };

  function toggle() {
    save();
    panel.hidden = !panel.hidden;
    button.setAttribute("aria-expanded", String(!panel.hidden));
    draw();
    if (panel.hidden) return;
    panel.scrollIntoView({ block: "nearest" });
    (list.querySelector("button") ?? at("history-off")).focus({ preventScroll: true });
  }

  button.addEventListener("click", toggle);
  panel.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.stopPropagation(); toggle(); button.focus(); } });
  at("history-off").addEventListener("click", () => {
    save();
    try { if (isOff()) localStorage.removeItem(OFF); else localStorage.setItem(OFF, "1"); } catch { showStatus("This browser cannot store a history."); }
    draw();
  });
  // Asks once more, since this cannot be undone.
  at("history-delete").addEventListener("click", () => {
    const name = `Really delete ${load().length}?`;
    if (at("history-delete").textContent !== name) { at("history-delete").textContent = name; return; }
    current = unsaved = null;
    store([]);
    at("history-off").focus();
  });
  at("history-delete").addEventListener("blur", () => { at("history-delete").textContent = "Delete all"; });
  addEventListener("storage", (event) => { if ([KEY, OFF, null].includes(event.key)) draw(); }); // another tab
  addEventListener("pagehide", save);
  document.addEventListener("visibilitychange", () => { if (document.hidden) save(); });

  return {
    toggle,
    // Stores a text and its translation soon, in place of the last one if it continues that.
    note(entry) {
      clearTimeout(timer);
      const last = unsaved ?? current;
      if (last && !(entry.source === last.source && entry.target === last.target && continues(entry.text, last.text))) { save(); current = null; }
      unsaved = { ...entry, time: Date.now() };
      timer = setTimeout(save, 1000);
    },
    // The text that follows is another one.
    next() { save(); current = null; },
  };
}
