// The view of models without a decoder: what they say about a text, and which words decided it, as on the page that `regard explain` writes.
import { post } from "./api.js";

// What the view starts with; what texts a model with labels was trained on, nobody knows here.
const EXAMPLES = {
  fill: ["The animal didn't cross the ___ because it was too tired.", ""],
  embed: ["The animal didn't cross the street because it was too tired", "The dog stayed where it was, since it needed some rest"],
};
const NOTHING = ["", ""];
const PLACEHOLDERS = { classify: "a text to label", tag: "a text whose words get tags", fill: "a text with ___ for a blank", embed: "a text" };
const at = (id) => document.getElementById(id);

// What the view is called: by the tasks of its models.
export function titleOf(encoders) {
  const tasks = encoders.map(([, { task }]) => task);
  if (tasks.includes("classify") || tasks.includes("tag")) return "Labels";
  return tasks.includes("fill") ? "Blanks" : "Similarity";
}

export function startLabels(encoders) {
  const { element, showEncoder } = globalThis.regardExplain;
  const served = Object.fromEntries(encoders);
  const [text, second, model, status, button, out] = ["read-text", "read-second", "read-model", "read-said", "read-button", "read-out"].map(at);
  const known = ["classify", "tag", "fill", "embed"];
  const names = encoders.map(([name]) => name).sort((a, b) => known.indexOf(served[a].task) - known.indexOf(served[b].task));
  model.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
  at("read-model-field").hidden = names.length < 2;
  let controller = null;
  let hasStarted = false;
  const task = () => served[model.value].task;
  const takesTwo = () => served[model.value].texts.includes(2);

  // `options`: the label, tag or token to explain instead of the likeliest.
  async function read(options = {}) {
    const first = text.value.trim(), other = takesTwo() ? second.value.trim() : "";
    hasStarted = true;
    if (!first) { showStatus("Enter a text."); text.focus(); return; }
    controller?.abort();
    const own = controller = new AbortController();
    button.disabled = true;
    out.classList.add("waiting");
    showStatus(out.childElementCount ? "Reading…" : "Reading… The first time takes a few seconds.");
    try {
      const data = await post("explain", { q: other ? [first, other] : first, model: model.value, ...options }, own.signal);
      const title = document.title;
      showEncoder(out, data, (place, candidate) => asked(data, place, candidate));
      document.title = title;
      showStatus("");
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status === 403) document.dispatchEvent(new Event("regard-refused"));
      showStatus(error.message, true);
    } finally {
      if (controller === own) { button.disabled = false; out.classList.remove("waiting"); }
    }
  }

  // What a click on an answer does that no words were found for yet; null where it cannot be asked for.
  function asked(data, place, candidate) {
    if (data.readings[0].windows > 1) return null; // predictions are numbered in the whole text
    if (data.model.task === "classify") return () => read({ label: candidate.text });
    if (data.model.task === "tag") return () => read({ at: place + 1, label: candidate.text });
    return candidate.text.startsWith(" ") ? () => read({ at: place + 1, token: candidate.text.trim() }) : null;
  }

  function showFields() {
    at("read-second-field").hidden = !takesTwo();
    text.placeholder = PLACEHOLDERS[task()];
    // Examples stand in both fields or in none: what someone wrote, or left empty beside it, is not filled in. An example of another
    // model that was left beside it goes.
    const fields = [text, second], own = EXAMPLES[task()] ?? NOTHING;
    const isUntouched = [NOTHING, ...Object.values(EXAMPLES)].some((texts) => fields.every((field, place) => field.value === texts[place]));
    fields.forEach((field, place) => {
      const isExample = Object.values(EXAMPLES).some((texts) => texts[place] === field.value);
      if (isUntouched) field.value = own[place];
      else if (isExample && field.value !== own[place]) field.value = "";
    });
  }

  function showStatus(message, isProblem = false) {
    status.textContent = message;
    status.classList.toggle("problem", isProblem && Boolean(message));
  }

  // What another model said, or is about to say, is no answer of this one.
  function clear() {
    controller?.abort();
    controller = null;
    button.disabled = false;
    out.classList.remove("waiting");
    out.replaceChildren();
    showStatus("");
  }

  at("read").addEventListener("submit", (event) => { event.preventDefault(); read(); });
  model.addEventListener("change", () => {
    showFields();
    const lacksBlank = task() === "fill" && !/___|\[MASK\]|<mask>/.test(text.value);
    if (lacksBlank) {
      clear();
      showStatus("Write ___ where a word is missing.");
    } else if (!text.value) {
      clear();
      hasStarted = false; // as at the start
    } else if (hasStarted) read();
  });
  document.addEventListener("regard-key", () => { if (hasStarted) read(); });
  showFields();
  return { onShow() { if (!hasStarted && text.value) read(); } };
}
