"use strict";
const byId = (id) => document.getElementById(id);
const root = document.documentElement;
const detail = byId("detail");
const packed = JSON.parse(byId("packed").textContent);

// Details: `#of=smollm2:L01` opens a shard, so that links and the back button work.
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const template = document.createElement("template");
  template.innerHTML = await new Response(stream).text();
  return template.content;
}

async function content(name) {
  for (const template of document.querySelectorAll("template[data-of]")) {
    if (template.dataset.of === name) return template.content.cloneNode(true);
  }
  return Object.hasOwn(packed, name) ? unpacked(packed[name]) : null;
}

let opener = null;
async function open() {
  const named = location.hash.startsWith("#of=");
  const made = named ? await content(decodeURIComponent(location.hash.slice(4))) : null;
  if (made === null) {
    if (named || !location.hash) detail.hidden = true;
    return;
  }
  detail.replaceChildren(made);
  detail.hidden = false;
  detail.scrollIntoView();
  detail.querySelector("h2").focus({ preventScroll: true });
}

function close() {
  history.pushState(null, "", location.pathname + location.search);
  detail.hidden = true;
  if (opener) opener.focus();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#of="]');
  if (link) {
    opener = link;
    if (link.hash === location.hash) open();
  }
  if (event.target.closest("[data-close]")) close();
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
}

function key(row, column, by) {
  if (by === "name") return row.dataset.name;
  if (by === "worst") return Number(row.dataset.place);
  const cell = row.cells[column];
  if (cell.classList.contains("none")) return Infinity;
  return cell.dataset.value === "" ? 1e300 : Number(cell.dataset.value);
}

function sort(head) {
  const column = heads.indexOf(head);
  const by = head.querySelector("button").dataset.sort;
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of heads) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const names = new Intl.Collator(undefined, { numeric: true });
  const sorted = rows.map((row) => [key(row, column, by), row]);
  const compare = by === "name" ? names.compare : (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  sorted.sort(([a], [b]) => (down ? compare(b, a) : compare(a, b)));
  body.append(...sorted.map(([, row]) => row));
}

byId("filter").addEventListener("input", filter);
byId("show").addEventListener("change", filter);
for (const head of heads) head.querySelector("button").addEventListener("click", () => sort(head));

// Light or dark: the system's, until somebody chooses.
const stored = (() => { try { return localStorage.getItem("ane-theme"); } catch { return null; } })();
const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
function named() { byId("theme").textContent = isDark() ? "Light" : "Dark"; }
if (stored === "dark" || stored === "light") root.dataset.theme = stored;
named();
byId("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("ane-theme", root.dataset.theme); } catch { /* Opened from disk. */ }
  named();
  draw();
});

// Charts: drawn when the page stands, as they come into view.
let vega = null;
function loaded() {
  vega ??= new Promise((done) => {
    const script = document.createElement("script");
    script.textContent = byId("vega").textContent;
    document.head.append(script);
    done(window.vegaEmbed);
  });
  return vega;
}

async function drawn(place) {
  const embed = await loaded();
  const spec = JSON.parse(byId("specs").textContent)[Number(place.dataset.chart)];
  const mode = isDark() ? "dark" : "light";
  const config = JSON.parse(byId("themes").textContent)[mode];
  await embed(place, { ...spec, config }, { actions: false, renderer: "svg", logLevel: 1 });
  place.dataset.drawn = mode;
}

function draw() {
  for (const place of document.querySelectorAll(".chart[data-drawn]")) drawn(place);
}
const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) {
      watch.unobserve(entry.target);
      drawn(entry.target);
    }
  }
}, { rootMargin: "300px" });
for (const place of document.querySelectorAll(".chart")) watch.observe(place);
addEventListener("beforeprint", () => {
  for (const place of document.querySelectorAll(".chart:not([data-drawn])")) drawn(place);
});

open();
root.dataset.ready = "";
