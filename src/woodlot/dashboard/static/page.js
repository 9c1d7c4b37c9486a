// What all pages share: the theme, the token of requests that change something, live news, charts.
"use strict";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const PARTY_COLOURS = ["#2f7d4f", "#3b6fb5", "#b5693b", "#7d4fa3", "#a3883b", "#3b9ca3", "#b53b6a", "#6b7d2f"];

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  drawCharts();
});

document.body.addEventListener("htmx:configRequest", (event) => {
  event.detail.headers["X-Woodlot-CSRF"] = document.querySelector('meta[name="csrf"]').content;
});
document.body.addEventListener("htmx:responseError", (event) => {
  let reason = event.detail.xhr.responseText;
  try { reason = JSON.parse(reason).error; } catch { /* plain text */ }
  alert(reason);
});

// --- news ---

if (document.querySelector("[data-news]")) {
  const source = new EventSource("/events");
  const renew = (isNew) => {
    for (const part of document.querySelectorAll("[data-news]")) if (isNew(part.dataset.news)) htmx.trigger(part, "news");
    drawRounds();
  };
  source.addEventListener("here", () => renew(() => true)); // what has changed since the page was made
  source.addEventListener("jobs", (event) => {
    const jobs = JSON.parse(event.data);
    renew((job) => !job || jobs.includes(job));
  });
  addEventListener("beforeunload", () => source.close());
}

// What a reader has opened stays open when a part of the page is renewed.
const opened = new Set();
document.body.addEventListener("htmx:beforeSwap", (event) => {
  for (const details of event.detail.target.querySelectorAll("details[id]")) opened[details.open ? "add" : "delete"](details.id);
});
document.body.addEventListener("htmx:afterSwap", () => {
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
});

// Buttons that open a part of the page, one at a time; it stays open when the page is renewed.
let shown = null;
function show(id) {
  for (const button of document.querySelectorAll("button[aria-controls]")) {
    const isIt = button.getAttribute("aria-controls") === id, part = document.getElementById(button.getAttribute("aria-controls"));
    button.setAttribute("aria-expanded", isIt);
    part.hidden = !isIt;
  }
  shown = id;
}
document.body.addEventListener("click", (event) => {
  const button = event.target.closest("button[aria-controls]");
  if (!button) return;
  const id = button.getAttribute("aria-controls");
  show(shown === id ? null : id);
  if (shown) document.getElementById(id).scrollIntoView({ block: "nearest" });
});
document.body.addEventListener("htmx:afterSwap", () => { if (shown) show(shown); });

// Whoever has no mouse scrolls with the keys: what is wider than its place can be reached by them.
function reachable() {
  for (const part of document.querySelectorAll(".scroll, nav")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
    else part.removeAttribute("tabindex");
  }
}
reachable();
addEventListener("resize", reachable);
// On a phone the pages are one line that scrolls: the present one is in sight.
const present = document.querySelector("nav a[aria-current]");
if (present) present.parentElement.scrollLeft = present.offsetLeft - (present.parentElement.clientWidth - present.offsetWidth) / 2;
document.body.addEventListener("htmx:afterSettle", reachable);

// --- charts ---

const charts = new Map();

function chart(element, option) {
  if (!charts.has(element)) charts.set(element, echarts.init(element));
  const text = css("--soft"), line = css("--line");
  const axis = { axisLabel: { color: text }, axisLine: { lineStyle: { color: line } }, splitLine: { lineStyle: { color: line } }, nameTextStyle: { color: text } };
  const withAxis = (one) => ({ ...axis, ...one, axisLabel: { ...axis.axisLabel, ...(one.axisLabel || {}) } });
  charts.get(element).setOption({
    animation: false, color: PARTY_COLOURS, textStyle: { fontFamily: "system-ui, sans-serif" },
    grid: { left: 12, right: 20, top: 34, bottom: 12, containLabel: true },
    legend: { top: 0, textStyle: { color: text } },
    tooltip: { renderMode: "richText", trigger: "axis" },
    ...option, xAxis: withAxis(option.xAxis), yAxis: withAxis(option.yAxis),
  }, true);
}
addEventListener("resize", () => charts.forEach((one) => one.resize()));

const bytes = (n) => n >= 1e9 ? (n / 1e9).toFixed(1) + " GB" : n >= 1e6 ? (n / 1e6).toFixed(1) + " MB" : n >= 1e3 ? (n / 1e3).toFixed(1) + " kB" : n + " B";
const dataOf = (element) => JSON.parse(document.getElementById(element.id + "-data").textContent);

const DRAW = {
  importance(element) {
    const features = dataOf(element).reverse();
    const parties = [...new Set(features.map((f) => f.party))].sort();
    chart(element, {
      xAxis: { type: "value" }, yAxis: { type: "category", data: features.map((f) => f.name), axisLabel: { fontFamily: "ui-monospace, monospace" } },
      series: parties.map((party) => ({ name: party, type: "bar", stack: "all", data: features.map((f) => f.party === party ? +f.value.toPrecision(4) : null) })),
    });
  },
  curve(element) {
    const { points, measure } = dataOf(element);
    chart(element, {
      legend: { show: false }, tooltip: { renderMode: "richText", trigger: "axis", valueFormatter: (s) => s.toFixed(4) },
      xAxis: { type: "value", name: "trees", nameLocation: "middle", nameGap: 26, max: points[points.length - 1][0] },
      yAxis: { type: "value", name: measure, scale: true },
      series: [{ name: measure, type: "line", symbolSize: 7, data: points }],
      grid: { left: 12, right: 20, top: 34, bottom: 28, containLabel: true },
    });
  },
  roc(element) {
    const curves = Object.entries(dataOf(element)).filter(([, kinds]) => kinds.roc);
    chart(element, {
      legend: { show: curves.length > 1, top: 0, textStyle: { color: css("--soft") } },
      tooltip: { renderMode: "richText", trigger: "item" },
      xAxis: { type: "value", name: "false positive rate", nameLocation: "middle", nameGap: 26, max: 1 },
      yAxis: { type: "value", name: "true positive rate", max: 1, nameTextStyle: { color: css("--soft"), align: "left" } },
      series: [
        ...curves.map(([label, kinds]) => ({ name: label, type: "line", symbolSize: 5, data: kinds.roc.fpr.map((x, i) => [x, kinds.roc.tpr[i]]) })),
        { name: "chance", type: "line", symbol: "none", silent: true, lineStyle: { type: "dashed", color: css("--soft") }, data: [[0, 0], [1, 1]] },
      ],
      grid: { left: 12, right: 20, top: 34, bottom: 28, containLabel: true },
    });
  },
  phases(element) {
    const seconds = dataOf(element);
    chart(element, {
      legend: { show: false }, xAxis: { type: "value", name: "s" }, yAxis: { type: "category", data: Object.keys(seconds) },
      series: [{ type: "bar", data: Object.values(seconds).map((s) => +s.toPrecision(3)) }],
    });
  },
  forms(element) {
    const rows = dataOf(element), pairs = [...new Set(rows.map((r) => `${r.sender} → ${r.receiver}`))];
    const sum = (pair, stake) => rows.filter((r) => `${r.sender} → ${r.receiver}` === pair && r.stake === stake).reduce((n, r) => n + r.bytes, 0);
    const colours = { rows: "#b5492b", numbers: "#b08f2e", nothing: "#8b988f" };
    chart(element, {
      tooltip: { renderMode: "richText", trigger: "axis", valueFormatter: bytes },
      xAxis: { type: "value", axisLabel: { formatter: bytes, hideOverlap: true } }, yAxis: { type: "category", data: pairs },
      series: Object.keys(colours).map((stake) => ({ name: stake, type: "bar", stack: "all", itemStyle: { color: colours[stake] }, data: pairs.map((p) => sum(p, stake)) })),
    });
  },
  residuals(element) {
    chart(element, {
      legend: { show: false }, tooltip: { renderMode: "richText" },
      xAxis: { type: "value", name: "label", scale: true }, yAxis: { type: "value", name: "answer", scale: true },
      series: [{ type: "scatter", symbolSize: 5, data: dataOf(element) }],
    });
  },
};

async function drawRounds() {
  const places = document.querySelectorAll("[data-rounds]");
  if (!places.length) return;
  const found = await (await fetch(places[0].dataset.rounds)).json();
  for (const place of places) {
    const perParty = place.dataset.kind === "bytes";
    const series = perParty
      ? Object.entries(found.bytes).map(([party, data]) => ({ name: party, type: "bar", stack: "all", data }))
      : [{ name: "seconds", type: "bar", data: found.seconds }];
    chart(place, {
      legend: { show: perParty, top: 0, textStyle: { color: css("--soft") } },
      tooltip: { renderMode: "richText", trigger: "axis", valueFormatter: perParty ? bytes : (s) => s.toPrecision(3) + " s" },
      xAxis: { type: "category", data: found.rounds.map((n, i) => `${n} ${found.kinds[i]}`), axisLabel: { formatter: (v) => v.split(" ")[0] } },
      yAxis: { type: "value", axisLabel: { formatter: perParty ? bytes : (s) => s + " s" } },
      series,
    });
  }
}

function drawCharts() {
  for (const element of document.querySelectorAll("[data-chart]")) DRAW[element.dataset.chart](element);
  drawRounds();
}
drawCharts();
document.body.addEventListener("htmx:afterSettle", () => { // a part of the page may have come with a chart
  for (const element of document.querySelectorAll("[data-chart]")) if (!charts.has(element)) DRAW[element.dataset.chart](element);
});
