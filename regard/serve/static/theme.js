// Light or dark as it was chosen last, before anything is drawn. Runs first, and on its own.
"use strict";
try {
  const chosen = localStorage.getItem("regard-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* storage is switched off: the system's choice it is */ }
