"use strict";
// The report: tables, the diagnosis, and charts that are drawn when they come into view.

const PALETTE = {
  light: ["#2f66b5", "#c2571b", "#0f7a56", "#8a3fa8", "#a8324a", "#8a6d00", "#1f8796", "#5a6878"],
  dark: ["#7fb0f3", "#f2955a", "#4fcb9c", "#c78be0", "#f0849a", "#dcbc4a", "#62c8d6", "#9aa8ba"],
};
const DASHES = ["solid", "dash", "dot", "dashdot"];

let facts;
const hidden = new Set();
const drawn = new Map(); // place -> chart

function groupColour(group) {
  const colours = PALETTE[document.documentElement.dataset.theme] ?? PALETTE.light;
  return colours[group % colours.length];
}

function dash(group) {
  return DASHES[Math.floor(group / PALETTE.light.length) % DASHES.length];
}

// The three traces of a curve: the bounds of its band, and its mean.
function traces(chart) {
  return chart.curves.filter((curve) => !hidden.has(curve.group)).flatMap((curve) => {
    const { data, shape: [, length] } = facts.arrays[curve.array];
    const [x, mean, low, high] = [0, 1, 2, 3].map((row) => data.subarray(row * length, (row + 1) * length));
    const name = facts.groups[curve.group];
    const line = { color: groupColour(curve.group), width: 2, dash: dash(curve.group) };
    const bound = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
    const mode = length === 1 ? "markers" : "lines";
    const band = [{ ...bound, y: low }, { ...bound, y: high, fill: "tonexty", fillcolor: `${line.color}33` }];
    const differs = mean.some((_, i) => low[i] !== high[i]);
    return [...(differs ? band : []), { x, y: mean, mode, name, line, marker: { color: line.color }, showlegend: false }];
  });
}

function marks(chart) {
  if (chart.section !== "Learning" && chart.section !== "Evaluation") return { shapes: [], annotations: [] };
  const known = [[facts.ceiling, "best without memory", "warm"], [facts.goal, "best possible", "good"]].filter(([value]) => value !== null);
  const shapes = known.map(([y, , name]) => (
    { type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: colour(name), width: 1.5, dash: "dot" } }));
  const annotations = known.map(([y, text, name]) => (
    { xref: "paper", x: 1, y, xanchor: "right", yanchor: "bottom", text, showarrow: false, font: { color: colour(name), size: 11 } }));
  return { shapes, annotations };
}

function extremeOf(chart, row, pick) {
  const rows = chart.curves.map((curve) => facts.arrays[curve.array]);
  return pick(...rows.map(({ data, shape: [, length] }) => data.subarray(row * length, (row + 1) * length).reduce((a, b) => pick(a, b))));
}

function layout(chart) {
  const grid = { gridcolor: colour("line"), zerolinecolor: colour("line"), color: colour("soft"), automargin: true };
  const type = chart.logarithmic ? "log" : "linear";
  const tickformat = chart.percent ? "~%" : undefined; // as many decimals as neighbouring ticks need
  const lowest = extremeOf(chart, 2, Math.min), highest = extremeOf(chart, 3, Math.max);
  const range = chart.lowest !== null && lowest < chart.lowest ? [chart.lowest, 1.05] : undefined;
  const rangemode = lowest >= 0 ? "nonnegative" : "normal"; // else zeros alone are drawn from -1 to 1
  const dtick = chart.logarithmic ? (highest > 30 * lowest ? 1 : "D2") : undefined; // more ticks would overlap
  const exponents = { exponentformat: chart.logarithmic ? "power" : "SI", minexponent: lowest < 1 ? 5 : 3 }; // 0.0008, not 800µ
  return {
    ...marks(chart),
    margin: { l: 8, r: 8, t: 8, b: 8 }, hovermode: "x unified", dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 11, color: colour("ink") },
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink"), size: 12 } },
    xaxis: { ...grid, title: { text: "steps", font: { size: 11 }, standoff: 4 }, exponentformat: "SI", hoverformat: ",.0f", nticks: 6 },
    yaxis: { ...grid, type, range, rangemode, dtick, tickformat, ...exponents, hoverformat: chart.percent ? ".1%" : ".4~g", nticks: 6 },
  };
}

function draw(place, chart) {
  drawn.set(place, chart);
  return Plotly.react(place, traces(chart), layout(chart), { responsive: true, displayModeBar: false });
}

function redraw() {
  for (const swatch of document.querySelectorAll(".swatch")) swatch.style.background = groupColour(Number(swatch.dataset.group));
  for (const [place, chart] of drawn) draw(place, chart);
}

function swatch(group) {
  const made = element("span", { className: "swatch" });
  made.dataset.group = group;
  return made;
}

function chartCard(title, charts) {
  const grid = element("div", { className: title === "Learning" ? "grid large" : "grid" });
  for (const chart of charts) {
    const place = element("div", { className: "plot" });
    place.dataset.metric = chart.metric;
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", chart.title);
    grid.append(element("div", { className: "chart" }, element("h3", { textContent: chart.title }), place));
    waiting.set(place, chart);
  }
  return element("section", { className: "card" }, element("h2", { textContent: title }), grid);
}

const waiting = new Map(); // place -> chart that has not been in view

function drawWaiting(place) {
  const chart = waiting.get(place);
  waiting.delete(place);
  return chart && draw(place, chart);
}

function showCharts() {
  const sections = Map.groupBy ? Map.groupBy(facts.charts, (chart) => chart.section) : groupBySection(facts.charts);
  for (const [title, charts] of sections) document.getElementById("charts").append(chartCard(title, charts));
  const inView = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) {
        inView.unobserve(target);
        drawWaiting(target);
      }
    }
  }, { rootMargin: "300px" });
  for (const place of waiting.keys()) inView.observe(place);
  addEventListener("beforeprint", () => [...waiting.keys()].forEach(drawWaiting));
}

function groupBySection(charts) {
  const sections = new Map();
  for (const chart of charts) sections.set(chart.section, [...(sections.get(chart.section) ?? []), chart]);
  return sections;
}

function showLegend() {
  const legend = document.getElementById("legend");
  legend.hidden = facts.groups.length < 2;
  facts.groups.forEach((label, group) => {
    const button = element("button", { type: "button" }, swatch(group), label);
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      if (!hidden.delete(group)) hidden.add(group);
      button.setAttribute("aria-pressed", String(!hidden.has(group)));
      redraw();
    });
    legend.append(button);
  });
}

function shownCount(value) {
  return value === null ? "–" : Math.round(value).toLocaleString("en");
}

function shownNumber(value) {
  return value === null ? "–" : number(value);
}

function clock(seconds) {
  if (seconds === null) return "–";
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds % 60)];
  const two = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

function row(kind, cells, numbersFrom = Infinity, numbersTo = Infinity) {
  const kindOf = (i) => (i >= numbersFrom && i < numbersTo ? "number" : i ? "" : "name");
  return element("tr", {}, ...cells.map((cell, i) => element(kind, { className: kindOf(i) }, cell)));
}

function showRuns() {
  const table = document.getElementById("runs");
  // A phone shows the first columns only, until the table is scrolled.
  const heads = ["run", "return", "best", "steps", "time", "steps/s", "replay error", "state", "pages"];
  table.append(row("th", heads, 1, 7));
  for (const run of facts.runs) {
    const links = Object.entries(run.links).flatMap(([name, href], i) => [i ? ", " : "", element("a", { href, textContent: name })]);
    const name = element("span", {}, swatch(run.group), run.name);
    table.append(row("td", [
      name, shownNumber(run.mean_return), shownNumber(run.best_return),
      run.steps >= run.total_steps ? shownCount(run.steps) : `${shownCount(run.steps)} of ${shownCount(run.total_steps)}`,
      clock(run.seconds), shownCount(run.steps_per_second), shownNumber(run.replay_error),
      run.state, element("span", {}, ...(links.length ? links : ["–"])),
    ], 1, 7));
  }
}

function showDiagnosis() {
  const place = document.getElementById("diagnosis");
  for (const run of facts.runs) {
    const { verdict, summary, findings } = run.diagnosis;
    if (facts.runs.length > 1) place.append(element("h3", { className: "of-run" }, swatch(run.group), run.name));
    if (!findings.length) place.append(element("div", { className: `finding ${verdict}` }, element("p", { textContent: summary })));
    for (const finding of findings) {
      place.append(element("div", { className: "finding" }, element("b", { textContent: finding.name }),
        element("p", { textContent: finding.evidence }), element("p", { className: "soft", textContent: finding.meaning }),
        element("p", {}, element("b", { textContent: "Try" }), finding.advice)));
    }
  }
}

function showMemory() {
  const known = facts.runs.filter((run) => run.memory.length);
  document.getElementById("memory-card").hidden = !known.length;
  for (const run of known) {
    if (facts.runs.length > 1) document.getElementById("memory").append(element("h3", { className: "of-run" }, swatch(run.group), run.name));
    document.getElementById("memory").append(element("ul", {}, ...run.memory.map((text) => element("li", { textContent: text }))));
  }
}

function failedCheck({ name, question, finding, effect, where, fix }) {
  const lines = [question, finding, effect, where].filter((text) => text);
  return element("div", { className: "finding" }, element("b", { textContent: name }),
    ...lines.map((textContent, i) => element("p", { className: i ? "soft" : "", textContent })),
    fix ? element("p", {}, element("b", { textContent: "Fix" }), fix) : "");
}

function auditSummary(checks, failed) {
  const done = checks.filter((check) => ["pass", "fail"].includes(check.status)).length;
  const left = checks.length - done ? `; ${checks.length - done} did not apply` : "";
  const text = failed.length ? `${failed.length} of ${done} checks failed${left}.` : `All ${done} checks hold${left}.`;
  return element("div", { className: `finding ${failed.length ? "" : "healthy"}` }, element("p", { textContent: text }));
}

function showAudit() {
  const known = facts.runs.filter((run) => run.audit.length);
  const place = document.getElementById("audit");
  document.getElementById("audit-card").hidden = !known.length;
  for (const run of known) {
    const failed = run.audit.filter((check) => check.status === "fail");
    const table = element("table", {}, ...run.audit.map((check) => row("td", [check.name, check.status, check.question])));
    if (facts.runs.length > 1) place.append(element("h3", { className: "of-run" }, swatch(run.group), run.name));
    place.append(auditSummary(run.audit, failed), ...failed.map(failedCheck),
      element("details", {}, element("summary", { textContent: "All checks" }), element("div", { className: "scroll" }, table)));
  }
}

function showSettings() {
  const differing = Object.entries(facts.differing);
  const table = document.getElementById("differing");
  if (differing.length) {
    table.append(row("th", ["setting", ...facts.runs.map((run) => run.name)]));
    for (const [name, values] of differing) table.append(row("td", [name, ...values]));
  } else {
    table.replaceWith(element("p", { className: "soft", textContent: facts.runs.length > 1 ? "None: these runs have the same settings." : "There is one run." }));
  }
  document.getElementById("settings-summary").textContent = facts.runs.length > 1 ? "Settings that all runs share" : "All settings";
  for (const [name, value] of Object.entries(facts.settings)) document.getElementById("settings").append(row("td", [name, value]));
}

async function start() {
  facts = await readData();
  document.title = facts.title;
  document.getElementById("title").textContent = facts.title;
  document.getElementById("subtitle").textContent = facts.subtitle;
  const bands = [];
  if (facts.several) bands.push("Runs that differ by their seed only are one curve, their mean; the band reaches from the lowest to the highest.");
  if (facts.merged) bands.push("A point of a long run stands for several epochs: their mean, with a band from the lowest to the highest.");
  document.getElementById("bands").textContent = bands.join(" ");
  showLegend();
  showRuns();
  showDiagnosis();
  showMemory();
  showAudit();
  showSettings();
  await new Promise((shown) => setTimeout(shown)); // the tables are readable while the library loads
  document.head.append(element("script", { textContent: new TextDecoder().decode(facts.arrays.plotly.data) }));
  facts.arrays.plotly = null;
  setUpTheme(document.getElementById("theme"), redraw);
  addEventListener("keydown", (event) => {
    if (event.key === "t" && !event.ctrlKey && !event.metaKey) document.getElementById("theme").click();
  });
  showCharts();
  document.body.dataset.ready = "true";
}

start();
