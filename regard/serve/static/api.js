// Talks to the server: JSON, server-sent events, the API key. Failures are thrown as a Problem with a message for the user; aborts as they are.

export class Problem extends Error {
  constructor(message, status, retry = null) {
    super(message);
    this.status = status;
    this.retry = retry; // seconds to wait before a retry; null: do not retry
  }
}

let key = "";
try { key = sessionStorage.getItem("regard-key") ?? ""; } catch { /* storage is disabled: the key is lost when the page closes */ }

export function useKey(value) {
  key = value;
  try { sessionStorage.setItem("regard-key", value); } catch { /* as above */ }
}

export const hasKey = () => key !== "";

async function send(path, options) {
  const headers = new Headers(options.headers);
  if (key) headers.set("Authorization", `Bearer ${key}`);
  const response = await awaitNetwork(() => fetch(path, { ...options, headers }), "The server does not respond.");
  if (response.ok || response.status === 304) return response;
  const body = await response.json().catch((error) => { if (error.name === "AbortError") throw error; return {}; });
  const retry = Number(response.headers.get("Retry-After")) || null;
  throw new Problem(sentence(body.error?.message ?? body.error ?? `the server responded with status ${response.status}`), response.status, retry);
}

// Awaits a network operation. If the connection fails, throws a Problem that may be retried.
async function awaitNetwork(work, message = "The connection broke.") {
  try {
    return await work();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(message, 0, 3);
  }
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

export async function get(path) {
  const response = await send(path, {});
  return awaitNetwork(() => response.json());
}

export async function getBlob(path, signal) {
  const response = await send(path, { signal });
  return awaitNetwork(() => response.blob());
}

// The data and its new ETag, or null if nothing has changed since `tag`.
export async function getIfChanged(path, tag) {
  const response = await send(path, { headers: tag ? { "If-None-Match": tag } : {} });
  return response.status === 304 ? null : { tag: response.headers.get("ETag"), data: await awaitNetwork(() => response.json()) };
}

export async function post(path, fields, signal) {
  const response = await send(path, { method: "POST", signal, body: JSON.stringify(fields), headers: { "Content-Type": "application/json" } });
  return awaitNetwork(() => response.json());
}

// Posts a form and calls `onEvent(name, data)` for each server-sent event of the response, which must include a `result`.
export async function postForm(path, form, signal, onEvent) {
  const response = await send(path, { method: "POST", signal, body: form, headers: { Accept: "text/event-stream" } });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "", isComplete = false;
  for (;;) {
    const { value, done } = await awaitNetwork(() => reader.read());
    if (done && !isComplete) throw new Problem("The connection broke before the end.", 0, 3);
    if (done) return;
    buffer += value;
    const events = buffer.split("\n\n");
    buffer = events.pop();
    for (const event of events) {
      const [, name, data] = /^event: (.*)\ndata: (.*)$/s.exec(event) ?? [];
      if (name === "error") throw new Problem(sentence(JSON.parse(data).error), JSON.parse(data).status);
      isComplete ||= name === "result";
      if (name) onEvent(name, JSON.parse(data));
    }
  }
}

// Posts fields and calls `onPart(data)` for each part of a text that OpenAI's API streams.
export async function postStream(path, fields, signal, onPart) {
  const response = await send(path, { method: "POST", signal, body: JSON.stringify({ ...fields, stream: true }), headers: { "Content-Type": "application/json" } });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await awaitNetwork(() => reader.read());
    if (done) throw new Problem("The connection broke before the end.", 0, 3);
    buffer += value;
    const events = buffer.split("\n\n");
    buffer = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const part = JSON.parse(data);
      if (part.error) throw new Problem(sentence(part.error.message), 500);
      onPart(part);
    }
  }
}
