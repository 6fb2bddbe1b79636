// The writing view. As a text: a prompt, what a language model writes after it, other words for each word, and attention within the text.
// As a chat: see chat.js.
import { post, postStream } from "./api.js";
import { startChat } from "./chat.js";
import { wordsOf } from "./sentences.js";
import { appendWord, startWords } from "./words.js";

const UNSURE = 0.1; // a word below this probability is marked
const COUNT = 8; // other words that are offered
const MODE = "regard-write-mode";
const at = (id) => document.getElementById(id);

// `chatting` are the models with a chat template.
export function startWrite(writers, chatting) {
  const { element, attention } = globalThis.regardExplain;
  const [model, prompt, out, problem, look, hint] = ["write-model", "write-prompt", "written", "write-problem", "write-look", "write-hint"].map(at);
  const [start, stop, more, looking, copy] = ["write-start", "write-stop", "write-more", "write-attention", "write-copy"].map(at);
  model.replaceChildren(...writers.map((name) => element("option", { value: name }, name)));
  at("write-model-field").hidden = writers.length < 2;
  let text = "", tokens = []; // what was written, and its tokens with their log-probabilities
  let controller = null;
  const lead = () => /^ */.exec(text)[0]; // the space before the first word is not shown

  const words = startWords(out, {
    fetchAlternatives: (_, before, signal) => post("write/words", { model: model.value, text: prompt.value + (lead() + before).replace(/ +$/, ""), count: COUNT }, signal),
    choose: (_, prefix, before, word) => write(before && !/\n\s*$/.test(before) ? appendWord(lead() + before, word) : lead() + before + word),
    activate() {},
  });

  const settings = () => ({ model: model.value, max_tokens: Number(at("write-length").value), temperature: Number(at("write-temperature").value) });
  const chat = startChat(settings);
  const modes = [...document.querySelectorAll("#write-modes button")];
  let mode = "text";
  try { mode = localStorage.getItem(MODE) === "chat" ? "chat" : "text"; } catch { /* storage is disabled */ }

  // A model without a chat template only continues texts.
  function showMode() {
    const canChat = chatting.includes(model.value);
    const isChat = mode === "chat" && canChat;
    at("write-modes").hidden = !canChat;
    for (const id of ["write-form", "write-look", "write-keys"]) at(id).hidden = isChat;
    if (isChat) { words.close(); problem.hidden = true; }
    at("chat").hidden = !isChat;
    modes.forEach((button) => button.setAttribute("aria-pressed", String((button.dataset.mode === "chat") === isChat)));
    return isChat;
  }

  function choose(name) {
    mode = name;
    try { localStorage.setItem(MODE, name); } catch { /* storage is disabled */ }
    onShow();
  }

  function onShow() {
    if (showMode()) chat.onShow(); else if (!prompt.value) prompt.focus({ preventScroll: true });
  }

  // The probability of each word: the product over its tokens; unknown for words of the user's own.
  function worded() {
    const known = tokens.map((token) => token.text).join("") === text;
    let place = 0;
    const spans = tokens.map((token) => { const from = place; place += token.text.length; return [from, place, token.value]; });
    let end = 0;
    return wordsOf(text).map((word) => {
      const from = end + word.before.length;
      end = from + word.text.length;
      const own = spans.filter(([a, b]) => a < end && b > from).map(([, , value]) => value);
      const probability = known && own.length && own.every((value) => value !== null) ? Math.exp(own.reduce((sum, value) => sum + value, 0)) : null;
      return { ...word, probability };
    });
  }

  function draw() {
    const [first, ...rest] = worded();
    const shown = text.slice(lead().length);
    const ways = [{ text: shown, words: first ? [{ ...first, before: first.before.slice(lead().length) }, ...rest] : [] }];
    const sentence = { before: "", text: "", ways, chosen: 0, prefix: "", edited: null, gap: null };
    words.draw({ sentences: shown ? [sentence] : [], after: "", end: null }, UNSURE);
  }

  function update() {
    const isBusy = controller !== null;
    start.hidden = isBusy;
    stop.hidden = !isBusy;
    more.hidden = copy.hidden = isBusy || !text;
    looking.hidden = isBusy || !(text || prompt.value.trim());
    out.setAttribute("aria-busy", String(isBusy));
  }

  function say(message) {
    problem.textContent = message;
    problem.hidden = !message;
  }

  // Writes on after the prompt and `begun`, text that stays.
  async function write(begun = "") {
    controller?.abort();
    const own = controller = new AbortController();
    // The tokens of what stays keep their probabilities as far as it is unchanged.
    let place = 0;
    tokens = tokens.filter((token) => { place += token.text.length; return place <= begun.length && begun.startsWith(text.slice(0, place)); });
    const length = tokens.reduce((sum, token) => sum + token.text.length, 0);
    if (length < begun.length) tokens.push({ text: begun.slice(length), value: null });
    text = begun;
    look.replaceChildren();
    say("");
    hint.textContent = "";
    draw();
    update();
    const fields = { ...settings(), prompt: prompt.value + begun, logprobs: 1, truncation: "auto" };
    try {
      await postStream("v1/completions", fields, own.signal, (part) => {
        const [choice] = part.choices;
        if (!choice) return;
        text += choice.text;
        choice.logprobs?.tokens.forEach((token, i) => tokens.push({ text: token, value: choice.logprobs.token_logprobs[i] }));
        if (choice.finish_reason === "stop") hint.textContent = "The model ends the text here.";
        draw();
      });
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status === 401) document.dispatchEvent(new Event("regard-refused"));
      say(error.message);
    } finally {
      if (controller === own) { controller = null; update(); }
    }
  }

  async function showAttention() {
    looking.disabled = true;
    say("");
    try {
      const data = await post("write/attention", { model: model.value, text: prompt.value + text });
      const section = attention(data);
      const { shown, of } = data.pieces;
      const note = shown < of ? [element("p", { class: "note" }, `The last ${shown} of ${of} pieces are shown; they also look at those before.`)] : [];
      look.replaceChildren(section, ...note, element("p", { class: "caution" }, data.caution));
      section.ready();
      look.scrollIntoView({ block: "nearest" });
    } catch (error) {
      if (error.status === 401 || error.status === 403) document.dispatchEvent(new Event("regard-refused"));
      say(error.message);
    } finally {
      looking.disabled = false;
    }
  }

  at("write-form").addEventListener("submit", (event) => { event.preventDefault(); write(); });
  prompt.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); write(); } });
  prompt.addEventListener("input", update);
  stop.addEventListener("click", () => { controller?.abort(); controller = null; update(); start.focus(); });
  more.addEventListener("click", () => write(text));
  looking.addEventListener("click", showAttention);
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(prompt.value + text);
    at("toast").textContent = "Copied";
    setTimeout(() => { at("toast").textContent = ""; }, 2000);
  });
  modes.forEach((button) => button.addEventListener("click", () => choose(button.dataset.mode)));
  model.addEventListener("change", showMode);
  update();
  showMode();
  return { onShow, onHide() { words.close(); } };
}
