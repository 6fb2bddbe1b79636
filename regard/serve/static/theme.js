// Applies the saved colour theme. A script of its own, so that it runs before anything is drawn.
"use strict";
try {
  const chosen = localStorage.getItem("regard-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* storage is disabled: use the system's theme */ }
