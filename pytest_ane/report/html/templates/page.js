"use strict";
const byId = (id) => document.getElementById(id);
const root = document.documentElement;
const detail = byId("detail");
const packed = JSON.parse(byId("packed").textContent);

// Details: `#of=smollm2:L01` opens a shard, and `#of=smollm2:L01&gate=fidelity` what one gate says of
// it, so that links and the back button work.
async function content(name) {
  if (!Object.hasOwn(packed, name)) return null;
  const bytes = Uint8Array.from(atob(packed[name]), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const template = document.createElement("template");
  template.innerHTML = await new Response(stream).text();
  return template.content;
}

let opener = null;
function named() {
  try {
    return location.hash.slice("#of=".length).split("&gate=").map(decodeURIComponent);
  } catch {
    return [""];
  }
}

async function open() {
  const [name, gate] = location.hash.startsWith("#of=") ? named() : [null];
  const made = name === null ? null : await content(name);
  if (made === null) {
    if (name !== null || !location.hash) hide();
    return;
  }
  detail.replaceChildren(made);
  detail.hidden = false;
  root.dataset.open = "";
  for (const row of rows) row.toggleAttribute("aria-current", row.dataset.name === name);
  detail.scrollTop = 0;
  detail.querySelector("h2").focus({ preventScroll: true });
  if (gate) [...detail.querySelectorAll(".gate")].find((one) => one.dataset.gate === gate)?.scrollIntoView();
}

function hide() {
  detail.hidden = true;
  delete root.dataset.open;
  for (const row of rows) row.removeAttribute("aria-current");
}

function close() {
  const row = rows.find((row) => row.hasAttribute("aria-current"));
  const link = opener?.isConnected ? opener : row?.querySelector("a");
  history.pushState(null, "", location.pathname + location.search);
  hide();
  (link?.checkVisibility() ? link : byId("filter")).focus();
}

// The next or the previous row, as the matrix is sorted and filtered now.
async function step(by) {
  const shown = [...body.rows].filter((row) => !row.hidden);
  const at = shown.findIndex((row) => row.hasAttribute("aria-current"));
  const link = shown[(at + by + shown.length) % shown.length]?.querySelector("a");
  if (!link) return;
  opener = link;
  history.replaceState(null, "", link.hash);
  await open();
  link.scrollIntoView({ block: "nearest" });
  detail.querySelector(`[data-step="${by}"]`).focus();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#of="]');
  if (link) {
    opener = link;
    if (link.hash === location.hash) open();
  }
  if (event.target.closest("[data-close]")) close();
  const by = event.target.closest("[data-step]");
  if (by) step(Number(by.dataset.step));
  const copy = event.target.closest("[data-copy]");
  if (copy) navigator.clipboard?.writeText(copy.dataset.copy).then(() => (copy.textContent = "Copied"));
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !detail.hidden) close();
});
addEventListener("hashchange", open);

// The matrix: filter and sort.
const body = document.querySelector("#shards tbody");
const rows = [...body.rows];
const heads = [...document.querySelectorAll("#shards thead th")];

function filter() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const status = byId("show").value;
  let shown = 0;
  for (const row of rows) {
    const name = row.dataset.name.toLowerCase();
    const of = row.dataset.status.split(" ");
    row.hidden = !words.every((word) => name.includes(word)) || (status !== "" && !of.includes(status));
    shown += !row.hidden;
  }
  byId("shown").textContent = `${shown} of ${rows.length}`;
  byId("none").hidden = shown > 0 || rows.length === 0;
}

const names = new Intl.Collator(undefined, { numeric: true });
function sort(head) {
  const column = heads.indexOf(head);
  const by = head.querySelector("button").dataset.sort;
  const way = head.ariaSort === "ascending" ? -1 : 1;
  for (const other of heads) other.ariaSort = "none";
  head.ariaSort = way > 0 ? "ascending" : "descending";
  const key = (row) => (by === "value" ? row.cells[column] : row).dataset[by] ?? "";
  const sorted = rows.map((row) => [key(row), row]);
  // What has no value comes last either way.
  const compare = by === "name" ? names.compare : (a, b) => Number(a) - Number(b);
  sorted.sort(([a], [b]) => (a === "") - (b === "") || way * compare(a, b));
  body.append(...sorted.map(([, row]) => row));
}

byId("filter").addEventListener("input", filter);
byId("show").addEventListener("change", filter);
byId("none").querySelector("button").addEventListener("click", () => {
  byId("filter").value = byId("show").value = "";
  filter();
  byId("filter").focus();
});
for (const head of heads) head.querySelector("button").addEventListener("click", () => sort(head));

// Light or dark: the system's, until somebody chooses.
const stored = (() => { try { return localStorage.getItem("ane-theme"); } catch { return null; } })();
const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
function label() { byId("theme").textContent = isDark() ? "Light" : "Dark"; }
if (stored === "dark" || stored === "light") root.dataset.theme = stored;
label();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
byId("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("ane-theme", root.dataset.theme); } catch { /* Opened from disk. */ }
  label();
});

open();
root.dataset.ready = Math.round(performance.now());
