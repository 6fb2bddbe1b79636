// The explain view: the same drawing that `regard explain` writes into a file, fed by this server, which can also decode again.
import { post } from "./api.js";
import { joined } from "./words.js";

const EXAMPLE = "The animal didn't cross the street because it was too tired";
const at = (id) => document.getElementById(id);

export function startExplain(languages) {
  const { element, show, quoted } = globalThis.regardExplain;
  const names = Object.fromEntries(languages.map((one) => [one.code, one.name]));
  const pairs = languages.flatMap((one) => one.targets.map((target) => [one.code, target]));
  const [text, target, choice, said, button] = ["ask-text", "ask-target", "ask-pair", "ask-said", "ask-button"].map(at);
  choice.replaceChildren(...pairs.map(([from, to], i) => element("option", { value: i }, `${names[from]} → ${names[to]}`)));
  at("ask-pair-field").hidden = pairs.length < 2;
  let controller = null;
  let begun = false;

  // `prefix` is how the translation is to begin.
  async function explain(prefix = "") {
    const sentence = text.value.trim();
    begun = true;
    if (!sentence) { say("Enter a sentence."); text.focus(); return; }
    controller?.abort();
    const own = controller = new AbortController();
    const [source, into] = pairs[choice.value];
    button.disabled = true;
    at("explained").classList.add("waiting");
    say(at("explained").childElementCount ? "Explaining…" : "Explaining… The first time takes a few seconds.");
    try {
      const data = await post("explain", { q: sentence, source, target: into, translation: target.value.trim(), prefix }, own.signal);
      draw(data, prefix);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status === 403) document.dispatchEvent(new Event("regard-refused"));
      say(error.message, true);
    } finally {
      if (controller === own) { button.disabled = false; at("explained").classList.remove("waiting"); }
    }
  }

  function draw(data, prefix) {
    const force = (begin, ends) => {
      if (ends) { target.value = begin; explain(); return; }
      target.value = "";
      explain(begin);
    };
    const edit = (before, word) => { target.value = ""; explain(`${joined(before, word)} `); };
    const title = document.title;
    show(at("explained"), data, force, edit);
    document.title = title;
    if (!prefix) { say(""); return; }
    const back = element("button", { type: "button", class: "plain" }, "Back to the model's own");
    back.addEventListener("click", () => explain());
    said.replaceChildren(`The translation was forced to begin with ${quoted(prefix.trim())}. `, back);
  }

  function say(message, isProblem = false) {
    said.textContent = message;
    said.classList.toggle("problem", isProblem && Boolean(message));
  }

  at("ask").addEventListener("submit", (event) => { event.preventDefault(); explain(); });
  choice.addEventListener("change", () => { target.value = ""; if (begun) explain(); });
  document.addEventListener("regard-key", () => { if (begun) explain(); });

  return {
    // A sentence of the translate view; its translation, if it is not the model's own.
    ask(sentence, translation, pair) {
      text.value = sentence;
      target.value = translation;
      choice.value = Math.max(0, pairs.findIndex(([from, to]) => from === pair[0] && to === pair[1]));
      begun = false;
      location.hash = "explain";
    },
    shown() {
      if (begun) return;
      if (!text.value) {
        const english = pairs.findIndex(([from]) => /^en\b/i.test(from));
        choice.value = Math.max(0, english);
        text.value = EXAMPLE;
      }
      explain();
    },
  };
}
