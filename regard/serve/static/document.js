// Documents: chosen or dropped, translated with a progress bar, downloaded. File names are only ever inserted as text.
import { Problem, getBlob, postForm } from "./api.js";
import { askColumn } from "./table.js";

const at = (id) => document.getElementById(id);

// `pair()` returns the selected languages, `terms()` the form fields for the user's terms.
export function startDocuments(settings, pair, terms) {
  const { element } = globalThis.regardExplain;
  const input = at("file"), list = at("documents");
  const extensions = settings.supportedFilesFormat;
  input.setAttribute("accept", extensions.join(","));
  at("upload").title = `translate a document (${extensions.join(" ")})`;
  at("formats").textContent = `Documents: ${extensions.join(" ")}, up to ${Math.floor(settings.fileBytes / 1048576)} MB. Of a PDF the text is translated, without its layout.`;
  at("upload").addEventListener("click", () => input.click());
  input.addEventListener("change", () => { add([...input.files]); input.value = ""; });

  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  const setDropping = (isOver) => document.body.classList.toggle("dropping", isOver);
  addEventListener("dragover", (event) => { if (carriesFiles(event)) { event.preventDefault(); setDropping(true); } });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) setDropping(false); });
  addEventListener("drop", (event) => { if (carriesFiles(event)) { event.preventDefault(); setDropping(false); add([...event.dataTransfer.files]); } });

  function add(files) {
    for (const file of files) list.prepend(row(file));
    list.hidden = list.childElementCount === 0;
  }

  function row(file) {
    const controller = new AbortController();
    const bar = element("progress", { max: "1", "aria-label": `progress of ${file.name}` });
    const status = element("p", { class: "note", role: "status" });
    const remove = element("button", { type: "button", class: "plain", "aria-label": `remove ${file.name}` }, "Cancel");
    const actions = element("div", { class: "actions" }, remove);
    const card = element("article", { class: "document" }, element("div", { class: "name" }, element("b", { dir: "auto" }, file.name), status), actions, bar);
    remove.addEventListener("click", () => { controller.abort(); card.remove(); list.hidden = list.childElementCount === 0; });
    const extension = /\.[^.]+$/.exec(file.name)?.[0].toLowerCase() ?? "";
    const start = (column) => translate(file, column, { controller, bar, status, remove, actions }).catch((error) => {
      if (error.name === "AbortError") return;
      if (!(error instanceof Problem)) throw error;
      if (error.status === 403) document.dispatchEvent(new Event("regard-refused"));
      failed(error.message);
    });
    const failed = (message) => { bar.remove(); status.textContent = message; status.className = "problem"; remove.textContent = "Remove"; };
    if (!extensions.includes(extension)) failed(`A document must be one of ${extensions.join(" ")}.`);
    else if (file.size > settings.fileBytes) failed(`A document may be at most ${Math.floor(settings.fileBytes / 1048576)} MB.`);
    else if (extension === ".csv" || extension === ".tsv") {
      bar.hidden = true;
      askColumn(file, (column) => { bar.hidden = false; start(column); }).then((form) => card.append(form), () => failed("This file cannot be read."));
    }
    else start("");
    return card;
  }

  async function translate(file, column, { controller, bar, status, remove, actions }) {
    const { source, target } = pair();
    const form = new FormData();
    form.set("file", file, file.name);
    form.set("source", source);
    form.set("target", target);
    if (column) form.set("column", column);
    Object.entries(terms()).forEach(([name, lines]) => form.set(name, lines));
    status.textContent = "Reading…";
    let finished = 0, url = "", unmet = [];
    await postForm("translate_file", form, controller.signal, (name, data) => {
      if (name === "result") { url = data.translatedFileUrl; unmet = data.unmet ?? []; return; }
      finished += 1;
      bar.value = finished / data.total;
      status.textContent = `${finished.toLocaleString("en")} of ${data.total.toLocaleString("en")} sentences`;
    });
    // Download at once, since the server keeps the file for a few minutes only. Use only the path of its URL: behind a proxy, the
    // server may not know its own public address.
    const { pathname } = new URL(url);
    const content = await getBlob(`.${pathname}`, controller.signal);
    const name = file.name.replace(/\.[^.]+$/, `.${target}${/\.[^.]+$/.exec(pathname)[0]}`); // the translation of a PDF is a text file
    const link = element("a", { class: "main-button", href: URL.createObjectURL(new Blob([content], { type: "application/octet-stream" })), download: name }, "Download");
    remove.addEventListener("click", () => URL.revokeObjectURL(link.href));
    bar.remove();
    status.textContent = `Translated, ${finished.toLocaleString("en")} ${finished === 1 ? "sentence" : "sentences"}.`;
    if (unmet.length) status.textContent += ` Not in the translation, though asked for: ${unmet.map((lost) => lost.text).join(", ")}`;
    actions.prepend(link);
    remove.textContent = "Remove";
  }
}
