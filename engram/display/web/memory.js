"use strict";
// The memory page: returns, memory horizon, and what can be read from memory.

const $ = (id) => document.getElementById(id);

readData().then(start).catch((error) => {
  $("title").textContent = "This page cannot be shown";
  $("facts-line").textContent = `${error}. It needs a browser of 2023 or later.`;
  throw error;
});

function start(facts) {
  const report = facts.report;
  fillPage(facts);
  const charts = [];
  if (report.horizon !== null) charts.push(makeHorizon(report, facts.bptt));
  const strips = makeFacts(report, charts);
  if (report.past.length) charts.push(makePast(report));
  $("facts-card").hidden = report.facts.length === 0;
  $("past-card").hidden = report.past.length === 0;
  const redraw = () => {
    drawReturns($("returns"), report, facts.ceiling);
    strips();
    for (const chart of charts) chart.draw();
  };
  setUpTheme($("theme"), redraw);
  document.addEventListener("keydown", (event) => {
    if (event.key === "t" && !event.ctrlKey && !event.metaKey && !event.altKey) $("theme").click();
  });
  let resizing = 0;
  new ResizeObserver(() => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(redraw);
  }).observe(document.querySelector("main"));
  document.body.dataset.ready = "true";
}

function fillPage(facts) {
  const { report } = facts;
  document.title = `Memory of ${facts.run}`;
  $("title").textContent = `Memory of ${facts.run} on ${facts.env}`;
  $("facts-line").textContent = [
    `policy ${facts.policy}`, `after ${facts.steps.toLocaleString("en")} steps (epoch ${facts.epoch})`,
    `${report.episodes} episodes of ${number(report.length)} steps on average`,
    facts.greedy ? "most likely actions" : "sampled actions", `seed ${facts.seed}`,
  ].join(" · ");
  $("verdict").replaceChildren(...facts.verdict.map((sentence) => element("li", { textContent: sentence })));
  $("swap").textContent = `step ${report.swap_step}`;
  $("ceiling-caption").textContent = facts.ceiling === null ? "" : "Dashed: the best return without memory.";
  $("bptt-caption").textContent = `Training sees ${facts.bptt} steps at a time (bptt_horizon).`;
  $("notes").textContent = report.notes.join(" ");
}

function drawReturns(canvas, { returns }, ceiling) {
  const names = Object.keys(returns);
  const line = 34, left = 76, right = 56;
  const { context, width, height } = prepare(canvas, names.length * line + 10);
  const bounds = names.flatMap((name) => [returns[name]?.low, returns[name]?.high, returns[name]?.mean]).concat(ceiling ?? 0, 0)
    .filter((value) => value !== null && value !== undefined);
  const low = Math.min(...bounds), high = Math.max(...bounds, low + 1e-6);
  const x = (value) => left + ((value - low) / (high - low)) * (width - left - right);
  context.textBaseline = "middle";
  names.forEach((name, index) => {
    const middle = index * line + line / 2, found = returns[name];
    context.textAlign = "right";
    context.fillStyle = colour("ink");
    context.font = "13px system-ui, sans-serif";
    context.fillText(name, left - 10, middle);
    context.fillStyle = colour("panel");
    context.fillRect(left, middle - 10, width - left - right, 20);
    if (found === null) return;
    context.fillStyle = colour(name === "normal" ? "accent" : "warm");
    context.fillRect(Math.min(x(0), x(found.mean)), middle - 10, Math.max(1, Math.abs(x(found.mean) - x(0))), 20);
    if (found.low !== null) {
      context.fillStyle = colour("ink");
      context.fillRect(x(found.low), middle - 0.75, x(found.high) - x(found.low), 1.5);
      for (const bound of [found.low, found.high]) context.fillRect(x(bound) - 0.75, middle - 5, 1.5, 10);
    }
    context.textAlign = "left";
    context.fillStyle = colour("ink");
    context.fillText(number(found.mean), width - right + 8, middle);
  });
  if (ceiling !== null) {
    context.strokeStyle = colour("ink");
    context.setLineDash([4, 4]);
    context.beginPath();
    context.moveTo(x(ceiling), 0);
    context.lineTo(x(ceiling), height);
    context.stroke();
    context.setLineDash([]);
  }
}

// Where a value lies among rising places: an index, with a fraction between two of them; null beyond the last.
function indexAmong(places, value) {
  const above = places.findIndex((place) => place >= value);
  if (above < 0) return null;
  return above ? above - (places[above] - value) / (places[above] - places[above - 1]) : 0;
}

function makeHorizon({ horizon }, bptt) {
  const chart = makeCurves($("horizon"), $("horizon-text"), ({ places, series }, at) => {
    const [mean, strong] = series;
    const interval = mean.low[at] === null ? "" : ` (${percent(mean.low[at])} to ${percent(mean.high[at])})`;
    return `Memory erased before the last ${places[at]}: mean change ${percent(mean.values[at])}${interval}, a tenth of the steps above ${percent(strong.values[at])}`;
  });
  const within = indexAmong(horizon.lags, bptt);
  chart.show({
    places: horizon.lags, label: "k: observations since memory was erased", bottom: 0, top: 0.2,
    marks: within !== null ? [{ index: within, name: "bptt_horizon" }] : [],
    series: [
      { name: "mean", tone: "accent", values: horizon.change.map(({ mean }) => mean), low: horizon.change.map(({ low }) => low), high: horizon.change.map(({ high }) => high) },
      { name: "strong", tone: "warm", values: horizon.strong },
    ],
  });
  return chart;
}

// How much memory tells above chance, from 0 to 1; null if unknown.
function above(score) {
  return score === null ? null : Math.max(0, Math.min(1, (score.memory - score.control) / Math.max(1e-6, 1 - score.control)));
}

function makeFacts(report, charts) {
  const chart = makeCurves($("fact"), $("fact-text"), ({ places, series }, at) =>
    `Step ${places[at]}: ` + (series[0].values[at] === null ? "too few episodes"
      : series.map(({ name, values }) => `${name} ${percent(values[at])}`).join(", ") + ` (${report.samples[at]} samples)`));
  const buttons = report.facts.map((fact) => {
    const strip = element("canvas");
    const best = Math.max(...fact.scores.map((score) => (score === null ? 0 : score.memory)));
    const button = element("button", { type: "button" },
      element("span", { className: "name", textContent: fact.name }), element("span", { className: "strip" }, strip),
      element("span", { className: "best", textContent: percent(best), title: "at its best step" }));
    button.addEventListener("click", () => choose(fact));
    return { button, strip, fact };
  });
  function choose(fact) {
    for (const each of buttons) each.button.setAttribute("aria-pressed", String(each.fact === fact));
    $("fact-name").textContent = `${fact.name}: ${fact.measure}${fact.measure === "accuracy" ? " (50% is chance)" : ""}`;
    const values = (name) => fact.scores.map((score) => (score === null ? null : Math.max(0, score[name])));
    chart.show({
      places: report.steps, label: "step of the episode", bottom: 0, top: 1,
      series: [
        { name: "control", tone: "soft", values: values("control"), dash: [5, 4] },
        { name: "current observation", tone: "good", values: values("observation") },
        { name: "memory", tone: "accent", values: values("memory") },
      ],
    });
  }
  $("facts").replaceChildren(...buttons.map(({ button }) => button));
  if (buttons.length) {
    choose(buttons[0].fact);
    charts.push(chart);
  }
  return () => {
    for (const { strip, fact } of buttons) {
      const { context, width, height } = prepare(strip, 20);
      const [none, full, unknown] = [rgb("card"), rgb("accent"), rgb("line")];
      const picture = heatPicture(fact.scores.length, 1, (index) => above(fact.scores[index]),
        (share) => (share === null ? unknown : mix(none, full, share)));
      context.imageSmoothingEnabled = false;
      context.drawImage(picture, 0, 0, width, height);
      context.strokeStyle = colour("line");
      context.strokeRect(0.5, 0.5, width - 1, height - 1);
    }
  };
}

function makePast({ past }) {
  const chart = makeCurves($("past"), $("past-text"), ({ places, series }, at) =>
    `${places[at]} step${places[at] === 1 ? "" : "s"} ago: ` + series.map(({ name, values }) => `${name} ${percent(values[at])}`).join(", "));
  const values = (name) => past.map((score) => Math.max(0, score[name]));
  chart.show({
    places: past.map(({ lag }) => lag), label: "k: steps ago", bottom: 0, top: 1,
    series: [
      { name: "control", tone: "soft", values: values("control"), dash: [5, 4] },
      { name: "current observation", tone: "good", values: values("observation") },
      { name: "memory", tone: "accent", values: values("memory") },
    ],
  });
  return chart;
}
