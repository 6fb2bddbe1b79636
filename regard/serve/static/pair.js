// The language pair: two menus, and a note if the text is in another language.

const at = (id) => document.getElementById(id);

// `initial` is selected at first, unless the browser remembers another pair.
export function startPair(languages, initial, onChange) {
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
  const choose = (source, target) => { set(source, target); remember([from.value, to.value]); };
  const isAvailable = (pair) => Array.isArray(pair) && (pair[0] === "auto" ? sources.length > 1 : targets[pair[0]]?.includes(pair[1]));
  set(...[last, [initial.source.code, initial.target.code], [sources[0], targets[sources[0]][0]]].find(isAvailable));

  from.addEventListener("change", () => { choose(from.value, to.value); onChange(); });
  to.addEventListener("change", () => { drawMenus(); remember([from.value, to.value]); onChange(); });

  // A language's name, also of one that is not served here.
  function nameOf(code) {
    if (names[code]) return names[code];
    try { return new Intl.DisplayNames(["en"], { type: "language" }).of(code); } catch { return code; }
  }

  return {
    names,
    nameOf,
    selected: () => ({ source: from.value, target: to.value }),
    // The pair with its names, or null while the source language is not detected yet.
    known(detected) {
      const source = from.value === "auto" ? detected : from.value;
      return targets[source]?.includes(to.value) ? { source, target: to.value, sourceName: names[source], targetName: names[to.value] } : null;
    },
    // Selects a pair, if it is served. Returns whether it is.
    choose(source, target) {
      const isServed = source !== "auto" && isAvailable([source, target]);
      if (isServed) choose(source, target);
      return isServed;
    },
    // `detected` is the source language found with "Detect language". Returns whether the pair could be swapped.
    swap(detected) {
      const source = from.value === "auto" ? detected : from.value;
      if (!targets[to.value]?.includes(source)) return false;
      choose(to.value, source);
      return true;
    },
    showDetected({ detectedLanguage }) {
      if (from.value === "auto") at("swap").disabled = !detectedLanguage || !targets[to.value]?.includes(detectedLanguage.language);
      const name = names[detectedLanguage?.language];
      at("detected").textContent = detectedLanguage ? (detectedLanguage.confidence ? name : `${name}?`) : "";
    },
    // Says that the text seems to be in the language `other` (null: in the source language), and offers to translate from it: into the
    // same language or, if it is in that one already, into the source language.
    showOther(other, source) {
      const note = at("other-language");
      note.hidden = !other;
      note.replaceChildren();
      if (!other) return;
      const target = [to.value, source, ...(targets[other] ?? [])].find((code) => targets[other]?.includes(code));
      note.append(`This seems to be ${nameOf(other)}, not ${nameOf(source)}. `);
      if (!target) return;
      const button = element("button", { type: "button", class: "plain" }, target === to.value ? `Translate from ${nameOf(other)}` : `Translate from ${nameOf(other)} to ${nameOf(target)}`);
      button.addEventListener("click", () => { choose(other, target); onChange(); });
      note.append(button);
    },
  };
}
