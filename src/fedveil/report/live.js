"use strict";
// Follows a run, or the list of runs: asks for a short state every second, and when it changed takes over the new page
// without losing what the reader has open, ticked, scrolled or zoomed.
(() => {
  const line = () => document.querySelector("[data-follow]");
  if (!line()) return;
  let seen = line().dataset.version;

  // A part that opens is known by its section and its place there: its title may hold a number that changes.
  const folds = (root) => {
    const count = {};
    return [...root.querySelectorAll("details")].map((fold) => {
      const section = fold.closest("section")?.id;
      count[section] = (count[section] || 0) + 1;
      return [`${section}/${count[section]}`, fold];
    });
  };

  const take = (fresh) => {
    const old = document.getElementById("content");
    const next = document.importNode(fresh.getElementById("content"), true);
    const opened = new Set(folds(old).filter(([, fold]) => fold.open).map(([key]) => key));
    for (const [key, fold] of folds(next)) fold.open = opened.has(key);
    const ticked = new Set([...old.querySelectorAll("input:checked")].map((box) => box.value));
    for (const box of next.querySelectorAll("input[type=checkbox]")) box.checked = ticked.has(box.value);
    const drawn = new Map([...old.querySelectorAll("figure")].map((f) => [f.querySelector("h3").textContent, f]));
    for (const figure of next.querySelectorAll("figure")) { // a drawing moves over, so that its zoom stays
      const before = drawn.get(figure.querySelector("h3").textContent)?.querySelector(".plot");
      const place = figure.querySelector(".plot");
      if (!before || !place) continue;
      for (const { name, value } of place.attributes) if (name !== "class") before.setAttribute(name, value);
      place.replaceWith(before);
    }
    const at = document.activeElement && old.contains(document.activeElement) ? path(document.activeElement, old) : null;
    const [x, y] = [scrollX, scrollY];
    old.replaceWith(next);
    for (const [selector, what] of [["h1", "textContent"], [".lead", "textContent"], ["title", "textContent"]]) {
      document.querySelector(selector)[what] = fresh.querySelector(selector)[what];
    }
    const notices = document.getElementById("notices");
    for (const child of [...notices.children]) if (!child.matches("[data-follow]")) child.remove();
    for (const child of fresh.getElementById("notices").children) {
      if (!child.matches("[data-follow]")) notices.append(document.importNode(child, true));
    }
    const [here, there] = [document.querySelector("nav"), fresh.querySelector("nav")];
    if (here && there) here.replaceWith(document.importNode(there, true));
    else if (there) document.querySelector(".lead").after(document.importNode(there, true));
    document.getElementById("plots").textContent = fresh.getElementById("plots").textContent;
    document.dispatchEvent(new Event("fedveil:figures"));
    if (at) find(at, next)?.focus({ preventScroll: true });
    scrollTo({ left: x, top: y, behavior: "instant" });
  };

  // Where an element stands below another: its places among its siblings.
  const path = (element, root) => {
    const steps = [];
    for (let e = element; e !== root; e = e.parentElement) steps.unshift([...e.parentElement.children].indexOf(e));
    return steps;
  };
  const find = (steps, root) => steps.reduce((e, i) => e?.children[i], root);

  let next = null; // the next look; null while one is under way
  const look = async () => {
    next = null;
    let wait = 1000;
    try {
      const answer = await fetch(line().dataset.follow);
      if (answer.status === 404) throw new Error("This run is gone from the folder.");
      const state = await answer.json();
      if (state.version !== seen) {
        const text = await (await fetch(location.href)).text();
        take(new DOMParser().parseFromString(text, "text/html"));
      }
      seen = state.version;
      if (line().textContent !== state.text) line().textContent = state.text;
      if (!state.running) wait = 2000;
    } catch (problem) {
      const known = problem.message.startsWith("This run");
      line().textContent = known ? problem.message : "The server does not answer; trying again.";
      wait = 3000;
    }
    next = setTimeout(look, document.hidden ? 5000 : wait);
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || next === null) return;
    clearTimeout(next);
    look();
  });
  look();
})();
