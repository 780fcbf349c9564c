"use strict";
// Light or dark: what the reader chose on this page, else what the system says. Runs before the first paint.
(() => {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const kept = () => {
    try { return localStorage.getItem("fedveil-theme"); } catch { return null; } // a page from a file may have no storage
  };
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => {
    for (const button of document.querySelectorAll("button.theme")) {
      button.hidden = false;
      button.textContent = dark() ? "Light colours" : "Dark colours";
    }
    document.dispatchEvent(new Event("fedveil:colours"));
  };
  if (["light", "dark"].includes(kept())) root.dataset.theme = kept();
  system.addEventListener("change", label);
  document.addEventListener("DOMContentLoaded", label);
  document.addEventListener("click", (event) => {
    if (!event.target.closest("button.theme")) return;
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("fedveil-theme", root.dataset.theme); } catch { /* then it lasts as long as the page */ }
    label();
  });
})();
