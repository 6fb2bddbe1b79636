// The chat of the writing view: a conversation with a model that has a chat template. It is kept in this browser until a new one begins.
import { postStream } from "./api.js";

const KEY = "regard-chat";
const MOST_CHARACTERS = 300_000; // that are kept: browsers store about five million
const at = (id) => document.getElementById(id);

// The newest messages that are kept. They begin with a question, as many chat templates demand.
function newest(messages) {
  let [size, first] = [0, messages.length];
  for (let n = messages.length - 1; n >= 0 && (size += messages[n].content.length) <= MOST_CHARACTERS; n--) if (messages[n].role === "user") first = n;
  return messages.slice(first);
}

const isMessage = (one) => ["user", "assistant"].includes(one?.role) && typeof one.content === "string";

// `settings()` are the fields of a request that the view chooses: model, temperature and the most tokens.
export function startChat(settings) {
  const { element } = globalThis.regardExplain;
  const [list, system, text, problem, hint] = ["chat-messages", "chat-system", "chat-text", "chat-problem", "chat-hint"].map(at);
  const [send, stop, fresh] = ["chat-send", "chat-stop", "chat-new"].map(at);
  let messages = [];
  let controller = null;

  // --- storage ---

  // Anything malformed in the storage is ignored.
  function load() {
    try {
      const stored = JSON.parse(localStorage.getItem(KEY)) ?? {};
      messages = Array.isArray(stored.messages) ? newest(stored.messages.filter(isMessage)) : [];
      system.value = typeof stored.system === "string" ? stored.system : "";
    } catch { messages = []; }
  }

  function store() {
    const kept = newest(messages);
    try {
      if (kept.length || system.value) localStorage.setItem(KEY, JSON.stringify({ system: system.value, messages: kept })); else localStorage.removeItem(KEY);
    } catch { /* storage is disabled: the conversation is lost when the page closes */ }
  }

  // --- what is seen ---

  const bubble = ({ role, content }) => element("li", { class: role, dir: "auto" }, element("span", { class: "quiet" }, role === "user" ? "You: " : "The model: "), content);

  function draw() {
    list.replaceChildren(...messages.map(bubble));
    update();
    list.scrollTop = list.scrollHeight;
  }

  function update() {
    const isBusy = controller !== null;
    send.hidden = isBusy;
    stop.hidden = !isBusy;
    fresh.hidden = !messages.length;
    list.setAttribute("aria-busy", String(isBusy));
    list.lastElementChild?.classList.toggle("waiting", isBusy && messages.at(-1)?.content === "");
  }

  function say(message) {
    problem.textContent = message;
    problem.hidden = !message;
  }

  // --- the conversation ---

  async function ask() {
    const asked = text.value.trim();
    if (!asked || controller) return;
    const own = controller = new AbortController();
    const answer = { role: "assistant", content: "" };
    const before = [...messages, { role: "user", content: asked }];
    messages = [...before, answer];
    text.value = "";
    hint.textContent = "";
    say("");
    draw();
    const told = system.value.trim() ? [{ role: "system", content: system.value.trim() }] : [];
    try {
      await postStream("v1/chat/completions", { ...settings(), messages: [...told, ...before], truncation: "auto" }, own.signal, (part) => {
        const [choice] = part.choices;
        if (!choice || controller !== own) return;
        const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40; // whoever reads further up is not moved
        answer.content += choice.delta.content ?? "";
        list.lastElementChild.replaceWith(bubble(answer));
        if (choice.finish_reason === "length") hint.textContent = "The answer ends at the length that you chose.";
        update();
        if (isAtEnd) list.scrollTop = list.scrollHeight;
      });
    } catch (error) {
      if (error.name !== "AbortError") {
        if (error.status === 401) document.dispatchEvent(new Event("regard-refused"));
        say(error.message);
      }
    } finally {
      if (controller === own) finish(answer, asked);
    }
  }

  // Ends an answer; without a word of it, the question goes back to where it was written.
  function finish(answer, asked) {
    controller = null;
    if (!answer.content) {
      messages = messages.slice(0, -2);
      if (!text.value) text.value = asked;
    }
    store();
    draw();
  }

  function begin() {
    controller?.abort();
    controller = null;
    messages = [];
    hint.textContent = "";
    say("");
    store();
    draw();
    text.focus();
  }

  at("chat-form").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  text.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask(); } });
  stop.addEventListener("click", () => { controller?.abort(); text.focus(); });
  fresh.addEventListener("click", begin);
  system.addEventListener("change", store);
  load();
  at("chat-told").open = Boolean(system.value);
  draw();
  return { onShow() { list.scrollTop = list.scrollHeight; text.focus({ preventScroll: true }); } };
}
