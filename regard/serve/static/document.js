// Documents: chosen or dropped, translated with progress, fetched. A file's name is only ever text here.
import { Problem, getBlob, postForm } from "./api.js";

const at = (id) => document.getElementById(id);

// `pair()` says which languages are chosen now, `terms()` what a form says of the reader's terms.
export function startDocuments(settings, pair, terms) {
  const { element } = globalThis.regardExplain;
  const file = at("file"), place = at("documents");
  const endings = settings.supportedFilesFormat;
  file.setAttribute("accept", endings.join(","));
  at("upload").title = `Translate a document: ${endings.join(" ")}`;
  at("upload").addEventListener("click", () => file.click());
  file.addEventListener("change", () => { add([...file.files]); file.value = ""; });

  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  const over = (is) => document.body.classList.toggle("dropping", is);
  addEventListener("dragover", (event) => { if (carriesFiles(event)) { event.preventDefault(); over(true); } });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) over(false); });
  addEventListener("drop", (event) => { if (carriesFiles(event)) { event.preventDefault(); over(false); add([...event.dataTransfer.files]); } });

  function add(files) {
    for (const one of files) place.prepend(row(one));
    place.hidden = place.childElementCount === 0;
  }

  function row(chosen) {
    const controller = new AbortController();
    const bar = element("progress", { max: "1", "aria-label": `progress of ${chosen.name}` });
    const said = element("p", { class: "note", role: "status" });
    const remove = element("button", { type: "button", class: "plain", "aria-label": `remove ${chosen.name}` }, "Cancel");
    const actions = element("div", { class: "actions" }, remove);
    const card = element("article", { class: "document" }, element("div", { class: "name" }, element("b", { dir: "auto" }, chosen.name), said), actions, bar);
    remove.addEventListener("click", () => { controller.abort(); card.remove(); place.hidden = place.childElementCount === 0; });
    const ending = /\.[^.]+$/.exec(chosen.name)?.[0].toLowerCase() ?? "";
    const begin = (column) => work(chosen, column, { controller, bar, said, remove, actions }).catch((error) => {
      if (error.name === "AbortError") return;
      if (!(error instanceof Problem)) throw error;
      if (error.status === 403) document.dispatchEvent(new Event("regard-refused"));
      failed(error.message);
    });
    const failed = (message) => { bar.remove(); said.textContent = message; said.className = "problem"; remove.textContent = "Remove"; };
    if (!endings.includes(ending)) failed(`A document must be one of ${endings.join(" ")}.`);
    else if (chosen.size > settings.fileBytes) failed(`A document may be at most ${Math.floor(settings.fileBytes / 1048576)} MB.`);
    else if (ending === ".csv" || ending === ".tsv") askColumn(card, bar, begin);
    else begin("");
    return card;
  }

  // Of a table one column is translated: which one must be said.
  function askColumn(card, bar, begin) {
    const input = element("input", { id: `column-${Math.random().toString(36).slice(2)}`, autocomplete: "off" });
    const form = element("form", { class: "column" }, element("label", { for: input.id }, "Column to translate, by name or number:"), input,
      element("button", { type: "submit", class: "plain" }, "Translate"));
    bar.hidden = true;
    form.addEventListener("submit", (event) => { event.preventDefault(); if (!input.value.trim()) return; form.remove(); bar.hidden = false; begin(input.value.trim()); });
    card.append(form);
  }

  async function work(chosen, column, { controller, bar, said, remove, actions }) {
    const { source, target } = pair();
    const form = new FormData();
    form.set("file", chosen, chosen.name);
    form.set("source", source);
    form.set("target", target);
    if (column) form.set("column", column);
    Object.entries(terms()).forEach(([name, lines]) => form.set(name, lines));
    said.textContent = "Reading…";
    let finished = 0, address = "";
    await postForm("translate_file", form, controller.signal, (name, data) => {
      if (name === "result") { address = data.translatedFileUrl; return; }
      finished += 1;
      bar.value = finished / data.total;
      said.textContent = `${finished.toLocaleString("en")} of ${data.total.toLocaleString("en")} sentences`;
    });
    // Fetched at once: the server keeps it for some minutes only. Of its address the path alone, since a proxy may have another idea
    // of where this server is.
    const content = await getBlob(`.${new URL(address).pathname}`, controller.signal);
    const link = element("a", { class: "main-button", href: URL.createObjectURL(new Blob([content], { type: "application/octet-stream" })), download: chosen.name.replace(/(\.[^.]+)$/, `.${target}$1`) }, "Download");
    remove.addEventListener("click", () => URL.revokeObjectURL(link.href));
    bar.remove();
    said.textContent = `Translated, ${finished.toLocaleString("en")} ${finished === 1 ? "sentence" : "sentences"}.`;
    actions.prepend(link);
    remove.textContent = "Remove";
  }
}
