"use strict";
// Nothing here makes markup from text: what the page holds was escaped when it was written.
const steps = [...document.querySelectorAll("article")];
const find = document.getElementById("find");
const count = document.getElementById("count");
let here = -1;
let texts = null;  // of the steps, in small letters: made when they are first searched
let waiting = 0;

function shown() {
  return steps.filter((step) => !step.hidden);
}

function go(to) {
  const seen = shown();
  if (!seen.length) return;
  const at = seen.indexOf(steps[here]);
  const next = seen[Math.max(0, Math.min(seen.length - 1, at < 0 ? 0 : at + to))];
  if (here >= 0) steps[here].classList.remove("here");
  here = steps.indexOf(next);
  next.classList.add("here");
  next.scrollIntoView({ block: "start" });
}

function search() {
  const wanted = find.value.toLowerCase();
  if (texts === null) texts = steps.map((step) => step.textContent.toLowerCase());
  steps.forEach((step, at) => { step.hidden = wanted !== "" && !texts[at].includes(wanted); });
  count.textContent = wanted === "" ? "" : shown().length + " of " + steps.length;
}

function fold(all) {
  const within = all || here < 0 ? document : steps[here];
  const parts = [...within.querySelectorAll("details")];
  const open = parts.some((part) => !part.open);
  for (const part of parts) part.open = open;
}

function turn() {
  const root = document.documentElement;
  const dark = root.classList.contains("dark") || (!root.classList.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
  root.classList.toggle("dark", !dark);
  root.classList.toggle("light", dark);
}

find.addEventListener("input", () => {
  clearTimeout(waiting);
  if (steps.length > 500) waiting = setTimeout(search, 150);  // not with each key: that is slow
  else search();
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === find) {
    if (event.key === "Escape" || event.key === "Enter") find.blur();
    return;
  }
  if (event.key === "j") go(1);
  else if (event.key === "k") go(-1);
  else if (event.key === "e") fold(false);
  else if (event.key === "E") fold(true);
  else if (event.key === "d") turn();
  else if (event.key === "/") { find.focus(); find.select(); event.preventDefault(); }
});
