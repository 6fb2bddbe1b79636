// The training view: polls the run while the view is visible, and redraws it when something has changed.
import { getIfChanged } from "./api.js";
import { chart } from "./chart.js";

const POLL_MS = 2000;
const at = (id) => document.getElementById(id);

export function startTraining() {
  const { element } = globalThis.regardExplain;
  const view = at("view-training");
  const state = { tag: null, data: null, fetched: 0, isShown: false, isPolling: false, problem: "" };
  const status = element("p", { class: "run-status", role: "status" });
  const body = element("div");
  view.replaceChildren(element("h1", { class: "quiet" }, "Training"), status, body);

  async function poll() {
    if (!state.isShown || document.hidden || state.isPolling) return;
    state.isPolling = true;
    try {
      const update = await getIfChanged("training", state.tag);
      state.problem = "";
      if (update) {
        body.replaceChildren(...draw(update.data, element));
        Object.assign(state, { ...update, fetched: performance.now() }); // after drawing: if that fails, the same data is fetched again
      }
    } catch (error) {
      state.problem = error.message;
      if (error.status === 403) document.dispatchEvent(new Event("regard-refused"));
    } finally {
      state.isPolling = false;
    }
    showStatus();
  }

  function showStatus() {
    const { data, problem } = state;
    const message = problem || data?.problem;
    status.classList.toggle("problem", Boolean(message));
    if (message) { status.textContent = message; return; }
    if (!data) return;
    const dot = element("i", { class: data.finished ? "finished" : "live", "aria-hidden": "true" });
    const age = data.updated === null ? null : data.now - data.updated + (performance.now() - state.fetched) / 1000;
    const text = data.finished ? "finished" : age === null ? "no measurements yet" : `last update ${duration(age)} ago`;
    status.replaceChildren(dot, text);
  }

  setInterval(poll, POLL_MS);
  document.addEventListener("visibilitychange", poll);
  document.addEventListener("regard-key", poll);
  return { onShow: () => { state.isShown = true; poll(); }, onHide: () => { state.isShown = false; } };
}

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min${whole < 600 ? ` ${whole % 60} s` : ""}`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

function draw(data, element) {
  const pair = data.source === null ? data.name : `${data.source} ${data.arrow} ${data.target}`;
  const head = element("header", { class: "run-head" }, element("h2", { dir: "auto" }, pair), element("p", { class: "note", dir: "auto" }, `run ${data.name}`));
  const parts = [head];
  if (data.done !== null) {
    const bar = element("progress", { max: "1", value: data.done, "aria-label": "training progress" });
    parts.push(bar);
  }
  parts.push(tiles(data, element), charts(data, element), ...samples(data, element), ...tests(data, element), ...notes(data, element));
  return parts;
}

const fixed = (digits) => (value) => value.toFixed(digits);
const whole = (value) => Math.round(value).toLocaleString("en");
const small = (value) => (value ? value.toExponential(2) : "0");

function tiles(data, element) {
  const { latest, latest_train: train, best } = data;
  const made = [];
  const tile = (name, value, under) => made.push(element("div", { class: "run-tile" }, element("p", {}, name), element("strong", {}, value), element("p", {}, under)));
  if (latest) tile("Step", whole(latest.step), [latest.epoch === undefined ? "" : `epoch ${latest.epoch.toFixed(1)}`, latest.elapsed === undefined ? "" : duration(latest.elapsed), data.remaining === null ? "" : `${duration(data.remaining)} left`].filter(Boolean).join(", "));
  if (train?.nll !== undefined) tile("Training loss", train.nll.toFixed(3), `learning rate ${small(train.lr ?? 0)}`);
  if (best?.loss !== undefined) tile("Validation loss", best.loss.toFixed(3), `best so far, step ${whole(best.step)}`);
  if (best?.bits_per_byte !== undefined) tile("Bits per byte", best.bits_per_byte.toFixed(3), best.perplexity === undefined ? "on the validation set" : `perplexity ${best.perplexity.toFixed(1)}, validation`);
  const [score, ...others] = data.scores.filter((one) => one.best !== null);
  if (score) tile(score.name[0].toUpperCase() + score.name.slice(1), score.best.toFixed(score.digits), [...others.map((one) => `${one.name} ${one.best.toFixed(one.digits)}`), others.length ? "validation" : "on the validation set"].join(", "));
  if (train?.tokens_per_second !== undefined) tile("Tokens per second", whole(train.tokens_per_second), data.source === null || data.arrow === "↔" ? "of text" : "target side");
  return element("div", { class: "run-tiles" }, ...made);
}

function charts(data, element) {
  const { curves, scores } = data;
  return element("div", { class: "run-charts" },
    chart(data.loss_title, [{ name: "training", style: "one", points: curves.training }, { name: "validation", style: "two", points: curves.validation, dots: true },
      { name: "objective", style: "faint", points: curves.objective }], fixed(3)),
    curves.bits_per_byte.length && !scores.length
      ? chart("Bits per byte", [{ name: "validation", style: "two", points: curves.bits_per_byte, dots: true }], fixed(3))
      : chart(scores.length === 1 ? `Validation ${scores[0].name}` : "Validation scores", scores.map((one, i) => ({ name: one.name, style: i % 2 ? "two" : "one", points: one.points, dots: true })), fixed(scores[0]?.digits ?? 1), { fromZero: true }),
    chart("Learning rate", [{ name: "learning rate", style: "one", points: curves.lr }], small, { fromZero: true }),
    chart("Tokens per second", [{ name: "tokens per second", style: "one", points: curves.tokens_per_second }], whole, { fromZero: true }));
}

// Each sample sentence with its reference, its latest translation and up to three earlier ones.
function samples(data, element) {
  if (!data.samples.length) return [];
  const row = (name, text, kind = "") => element("div", { class: kind }, element("dt", {}, name), element("dd", { dir: "auto" }, text || "(empty)"));
  const isText = data.source === null; // a language model: only translation has languages
  const cards = data.samples.map((sample) => {
    const [last, ...before] = [...sample.changes].reverse();
    const rows = [row(isText ? "prompt" : "source", sample.source), row("reference", sample.reference, "reference"), row(`step ${whole(last.step)}`, last.translation, "newest"),
      ...before.slice(0, 3).map((one) => row(`step ${whole(one.step)}`, one.translation, "older"))];
    return element("article", { class: "card run-sample" }, element("dl", {}, ...rows));
  });
  return [element("section", {}, element("h2", {}, isText ? "Continuations over time" : "Translations over time"), element("p", { class: "lead" }, isText ? "Passages of the validation text, newest continuation first, one row per change." : "Sentences from the validation set, newest translation first, one row per change."), ...cards)];
}

function tests(data, element) {
  if (!data.tests.length) return [];
  const rows = data.tests.flatMap((test) => test.metrics.map((metric) => element("tr", {}, element("td", {}, test.name), element("td", {}, metric.name),
    element("td", { class: "number" }, metric.score.toFixed(2)), element("td", { class: "number" }, metric.confidence === null ? "" : `± ${metric.confidence.toFixed(2)}`),
    element("td", {}, element("code", {}, metric.signature)))));
  const heads = ["set", "metric", "score", "95%", "signature"].map((name, i) => element("th", { scope: "col", class: i === 2 || i === 3 ? "number" : "" }, name));
  return [element("section", {}, element("h2", {}, "Test scores"), element("div", { class: "card scroll run-scores", tabindex: "0", role: "region", "aria-label": "test scores" },
    element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows))))];
}

function notes(data, element) {
  if (!data.notes.length) return [];
  return [element("section", {}, element("h2", {}, "Notes"), ...data.notes.map((text) => element("p", { class: "note", dir: "auto" }, text)))];
}
