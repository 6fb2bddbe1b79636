// Starts the views, and handles what they share: navigation, the colour theme and the API key.
import { get, hasKey, useKey } from "./api.js";
import { startLabels, titleOf } from "./labels.js";
import { startExplain } from "./look.js";
import { readLink } from "./share.js";
import { startTraining } from "./training.js";
import { startTranslate } from "./translate.js";
import { startWrite } from "./write.js";

const at = (id) => document.getElementById(id);

// --- light and dark ---

const THEMES = { auto: ["◐", "system"], light: ["☀", "light"], dark: ["☾", "dark"] };
const order = Object.keys(THEMES);

function startTheme() {
  const button = at("theme");
  const current = () => document.documentElement.dataset.theme ?? "auto";
  const show = () => {
    const [sign, name] = THEMES[current()];
    button.textContent = sign;
    button.setAttribute("aria-label", `colours: ${name}`);
    button.title = `colours: ${name}`;
  };
  button.addEventListener("click", () => {
    const next = order[(order.indexOf(current()) + 1) % order.length];
    if (next === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = next;
    try { localStorage.setItem("regard-theme", next); } catch { /* storage is disabled */ }
    show();
    document.dispatchEvent(new Event("regard-theme"));
  });
  show();
}

// --- the API key ---

function startKey(settings) {
  const dialog = at("key-dialog");
  at("key-button").hidden = !settings.keyRequired;
  at("key-button").addEventListener("click", () => dialog.showModal());
  at("key-cancel").addEventListener("click", () => dialog.close("cancel"));
  dialog.addEventListener("close", () => {
    if (dialog.returnValue !== "ok") return;
    useKey(at("key").value.trim());
    document.dispatchEvent(new Event("regard-key"));
  });
  document.addEventListener("regard-refused", () => { if (settings.keyRequired && !dialog.open) dialog.showModal(); });
  if (settings.keyRequired && !hasKey()) dialog.showModal();
}

// --- views ---

const TITLES = { translate: "Translate", explain: "Explain", labels: "Labels", write: "Write", training: "Training" };

function startViews(views) {
  const tabs = [...document.querySelectorAll(".tabs a")];
  const show = (name) => {
    for (const other of Object.keys(TITLES)) at(`view-${other}`).hidden = other !== name;
    tabs.forEach((tab) => { if (tab.dataset.view === name) tab.setAttribute("aria-current", "page"); else tab.removeAttribute("aria-current"); });
    document.title = `${TITLES[name]} · Regard`;
    Object.entries(views).forEach(([other, view]) => { if (other === name) view.onShow?.(); else view.onHide?.(); });
  };
  const showCurrent = () => {
    const [name] = location.hash.slice(1).split("?");
    const shared = readLink(location.hash);
    if (shared) history.replaceState(null, "", `${location.pathname}#${name}`); // it would no longer fit once the text is changed
    if (Object.hasOwn(views, name)) show(name); // other names are anchors inside a view
    else if (!name) show(Object.keys(views)[0]);
    if (shared) views.translate?.open?.(shared);
    return name;
  };
  addEventListener("hashchange", () => { if (Object.hasOwn(views, showCurrent())) scrollTo(0, 0); });
  if (!Object.hasOwn(views, location.hash.slice(1).split("?")[0])) history.replaceState(null, "", location.pathname);
  showCurrent();
}

async function start() {
  startTheme();
  const [settings, languages] = await Promise.all([get("frontend/settings"), get("languages")]);
  startKey(settings);
  const explain = startExplain(languages);
  const views = {};
  const encoders = Object.entries(settings.encoders);
  if (languages.length || !(settings.training || settings.writers.length || encoders.length)) views.translate = startTranslate(languages, settings, (text, target, pair) => explain.open(text, target, pair));
  if (languages.length) views.explain = explain;
  if (encoders.length) {
    TITLES.labels = document.querySelector("[data-view=labels]").textContent = titleOf(encoders);
    views.labels = startLabels(encoders);
  }
  if (settings.writers.length) views.write = startWrite(settings.writers, settings.chatting);
  if (settings.training) views.training = startTraining();
  document.querySelectorAll(".tabs a").forEach((tab) => { tab.hidden = !Object.hasOwn(views, tab.dataset.view); });
  document.querySelector(".brand").href = `#${Object.keys(views)[0]}`;
  startViews(views);
}

start().catch((error) => {
  at("problem").textContent = error.message;
  at("problem").hidden = false;
});
