// Talks to the server: JSON in and out, events, the API key. A refusal becomes a Problem with the server's own line.

export class Problem extends Error {
  constructor(message, status, retry = null) {
    super(message);
    this.status = status;
    this.retry = retry; // seconds after which it may be tried again
  }
}

let key = "";
try { key = sessionStorage.getItem("regard-key") ?? ""; } catch { /* storage is switched off: the key lives as long as the page */ }

export function useKey(given) {
  key = given;
  try { sessionStorage.setItem("regard-key", given); } catch { /* as above */ }
}

export const hasKey = () => key !== "";

async function send(path, options) {
  const headers = new Headers(options.headers);
  if (key) headers.set("Authorization", `Bearer ${key}`);
  const answer = await reached(() => fetch(path, { ...options, headers }), "The server does not respond.");
  if (answer.ok || answer.status === 304) return answer;
  const body = await answer.json().catch((error) => { if (error.name === "AbortError") throw error; return {}; });
  const retry = Number(answer.headers.get("Retry-After")) || null;
  throw new Problem(sentence(body.error ?? `the server responded with status ${answer.status}`), answer.status, retry);
}

// What comes over a connection, which may break at any time.
async function reached(work, message = "The connection broke.") {
  try {
    return await work();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(message, 0, 3);
  }
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

export async function get(path) {
  const answer = await send(path, {});
  return reached(() => answer.json());
}

export async function getBlob(path, signal) {
  const answer = await send(path, { signal });
  return reached(() => answer.blob());
}

// What is new since the answer with this tag; null where nothing is.
export async function getNew(path, tag) {
  const answer = await send(path, { headers: tag ? { "If-None-Match": tag } : {} });
  return answer.status === 304 ? null : { tag: answer.headers.get("ETag"), data: await reached(() => answer.json()) };
}

export async function post(path, fields, signal) {
  const answer = await send(path, { method: "POST", signal, body: JSON.stringify(fields), headers: { "Content-Type": "application/json" } });
  return reached(() => answer.json());
}

// Server-sent events of a form that is sent: `heard(name, data)` for each. The last must be the result.
export async function postForm(path, form, signal, heard) {
  const answer = await send(path, { method: "POST", signal, body: form, headers: { Accept: "text/event-stream" } });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", isComplete = false;
  for (;;) {
    const { value, done } = await reached(() => reader.read());
    if (done && !isComplete) throw new Problem("The connection broke before the end.", 0, 3);
    if (done) return;
    rest += value;
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const [, name, data] = /^event: (.*)\ndata: (.*)$/s.exec(event) ?? [];
      if (name === "error") throw new Problem(sentence(JSON.parse(data).error), JSON.parse(data).status);
      isComplete ||= name === "result";
      if (name) heard(name, JSON.parse(data));
    }
  }
}
