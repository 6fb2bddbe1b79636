// The explain view: the page that `regard explain` writes, but with data from this server, which can also translate again.
import { post } from "./api.js";
import { appendWord } from "./words.js";

const EXAMPLE = "The animal didn't cross the street because it was too tired";
const at = (id) => document.getElementById(id);

export function startExplain(languages) {
  const { element, show, quoted } = globalThis.regardExplain;
  const names = Object.fromEntries(languages.map((one) => [one.code, one.name]));
  const pairs = languages.flatMap((one) => one.targets.map((target) => [one.code, target]));
  const [text, target, choice, status, button] = ["ask-text", "ask-target", "ask-pair", "ask-said", "ask-button"].map(at);
  choice.replaceChildren(...pairs.map(([from, to], i) => element("option", { value: i }, `${names[from]} → ${names[to]}`)));
  at("ask-pair-field").hidden = pairs.length < 2;
  let controller = null;
  let hasStarted = false;

  // `prefix`: text that the translation must begin with.
  async function explain(prefix = "") {
    const sentence = text.value.trim();
    hasStarted = true;
    if (!sentence) { showStatus("Enter a sentence."); text.focus(); return; }
    controller?.abort();
    const own = controller = new AbortController();
    const [source, targetLanguage] = pairs[choice.value];
    button.disabled = true;
    at("explained").classList.add("waiting");
    showStatus(at("explained").childElementCount ? "Explaining…" : "Explaining… The first time takes a few seconds.");
    try {
      const data = await post("explain", { q: sentence, source, target: targetLanguage, translation: target.value.trim(), prefix }, own.signal);
      draw(data, prefix);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status === 403) document.dispatchEvent(new Event("regard-refused"));
      showStatus(error.message, true);
    } finally {
      if (controller === own) { button.disabled = false; at("explained").classList.remove("waiting"); }
    }
  }

  function draw(data, prefix) {
    const force = (text, isComplete) => {
      if (isComplete) { target.value = text; explain(); return; }
      target.value = "";
      explain(text);
    };
    const edit = (before, word) => { target.value = ""; explain(`${appendWord(before, word)} `); };
    const title = document.title;
    show(at("explained"), data, force, edit);
    document.title = title;
    if (!prefix) { showStatus(""); return; }
    const back = element("button", { type: "button", class: "plain" }, "Back to the model's own");
    back.addEventListener("click", () => explain());
    status.replaceChildren(`The translation was forced to begin with ${quoted(prefix.trim())}. `, back);
  }

  function showStatus(message, isProblem = false) {
    status.textContent = message;
    status.classList.toggle("problem", isProblem && Boolean(message));
  }

  at("ask").addEventListener("submit", (event) => { event.preventDefault(); explain(); });
  choice.addEventListener("change", () => { target.value = ""; if (hasStarted) explain(); });
  document.addEventListener("regard-key", () => { if (hasStarted) explain(); });

  return {
    // Shows the view for a sentence; `translation` is empty for the model's own.
    open(sentence, translation, pair) {
      text.value = sentence;
      target.value = translation;
      choice.value = Math.max(0, pairs.findIndex(([from, to]) => from === pair[0] && to === pair[1]));
      hasStarted = false;
      location.hash = "explain";
    },
    onShow() {
      if (hasStarted) return;
      if (!text.value) {
        const english = pairs.findIndex(([from]) => /^en\b/i.test(from));
        choice.value = Math.max(0, english);
        text.value = EXAMPLE;
      }
      explain();
    },
  };
}
