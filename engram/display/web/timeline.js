"use strict";
// Charts over time. They share one axis: step t is at the same place in all of them.

const GUTTER = 38; // pixels left of the first step
const AXIS = 18; // pixels below a chart

function timeScale(width, count) {
  const span = width - GUTTER - 6;
  return {
    left: GUTTER, span, each: span / count,
    at: (step) => GUTTER + ((step + 0.5) / count) * span,
    stepAt: (x) => Math.max(0, Math.min(count - 1, Math.floor(((x - GUTTER) / span) * count))),
  };
}

function drawStarts(context, scale, starts, height) {
  context.fillStyle = colour("ink");
  context.globalAlpha = 0.55;
  for (const start of starts) context.fillRect(scale.left + start * scale.each - 0.5, 0, 1, height);
  context.globalAlpha = 1;
}

function drawAxis(context, scale, count, top) {
  context.fillStyle = colour("soft");
  context.textAlign = "center";
  context.textBaseline = "top";
  const rough = (count * 56) / scale.span;
  const power = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
  const stride = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= rough) ?? 1;
  for (let step = 0; step < count; step += stride) context.fillText(String(step), scale.at(step), top + 4);
  context.textAlign = "right";
  if (stride > 1 || count < 8) context.fillText("step", GUTTER - 6, top + 4);
}

function drawCursor(context, scale, step, height) {
  context.fillStyle = colour("ink");
  context.globalAlpha = 0.14;
  const wide = Math.max(3, scale.each);
  context.fillRect(scale.at(step) - wide / 2, 0, wide, height);
  context.globalAlpha = 1;
  context.fillRect(scale.at(step) - 0.75, 0, 1.5, height);
}

function yLabel(context, text, y) {
  context.fillStyle = colour("soft");
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText(text, GUTTER - 6, y, GUTTER - 8); // a long one is made narrower
}

// A bound of an axis. What rounds to nothing beside the range is 0.
function bound(value, range) {
  if (Math.abs(value) < 0.005 * range) return "0";
  return Math.abs(value) >= 1000 && Math.abs(value) < 1e5 ? value.toFixed(0) : number(value);
}

// Both bounds of an axis, with as many digits as tell them apart.
function bounds(high, low) {
  let labels = [high, low].map((value) => bound(value, high - low));
  for (let digits = 4; labels[0] === labels[1] && digits < 9; digits++) labels = [high, low].map((value) => value.toPrecision(digits));
  return labels;
}

// A chart whose content changes with the agent and the size only; the cursor is drawn over a copy of it.
function makeStill(canvas, drawContent) {
  let still = null, scale = null, size = null;
  return {
    redraw(state) {
      size = drawContent(canvas, state);
      scale = size.scale;
      still = copyOf(canvas);
    },
    cursor(state) {
      if (still === null) return;
      const context = canvas.getContext("2d");
      context.save();
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.clearRect(0, 0, canvas.width, canvas.height);
      context.drawImage(still, 0, 0);
      context.restore();
      drawCursor(context, scale, state.step, size.cursorHeight);
    },
  };
}

function drawMemory(canvas, { facts, agent }) {
  const { data, shape } = facts.arrays.memory;
  const [, units, count] = shape;
  const height = Math.max(60, Math.min(260, units * 6));
  const { context, width } = prepare(canvas, height + AXIS);
  const scale = timeScale(width, count);
  const shades = [rgb("negative"), rgb("middle"), rgb("positive")];
  const first = agent * units * count;
  const picture = heatPicture(count, units, (x, y) => data[first + y * count + x] / 127,
    (value) => mix(shades[1], value < 0 ? shades[0] : shades[2], Math.abs(value)));
  context.imageSmoothingEnabled = scale.each < 1;
  context.drawImage(picture, scale.left, 0, scale.span, height);
  drawStarts(context, scale, facts.startsOf[agent], height);
  yLabel(context, "units", height / 2);
  drawAxis(context, scale, count, height);
  return { scale, cursorHeight: height };
}

const STRIPS = [
  { name: "value", array: "values", tone: "accent" },
  { name: "reward", array: "rewards", tone: "good", bars: true },
  { name: "entropy", array: "entropies", tone: "soft" },
  { name: "memory", array: "use", tone: "warm", bars: true, low: 0, high: 1 },
];

function drawCurves(canvas, { facts, agent }) {
  const strip = 52, gap = 12, first = 4; // room for the first name
  const height = first + STRIPS.length * (strip + gap);
  const { context, width } = prepare(canvas, height + AXIS);
  const scale = timeScale(width, facts.count);
  STRIPS.forEach((curve, i) => drawStrip(context, scale, facts, agent, curve, first + i * (strip + gap), strip));
  drawStarts(context, scale, facts.startsOf[agent], height);
  drawAxis(context, scale, facts.count, height - gap / 2);
  return { scale, cursorHeight: height };
}

function drawStrip(context, scale, facts, agent, curve, top, height) {
  const values = facts.arrays[curve.array].data;
  const at = (step) => values[step * facts.agents + agent];
  let low = curve.low ?? Infinity, high = curve.high ?? -Infinity;
  for (let step = 0; step < facts.count; step++) {
    if (curve.low === undefined) low = Math.min(low, at(step), curve.bars ? 0 : Infinity);
    if (curve.high === undefined) high = Math.max(high, at(step), curve.bars ? 0 : -Infinity);
  }
  if (high - low < 1e-6) high = low + 1;
  const y = (value) => top + 12 + (height - 14) * (1 - (value - low) / (high - low));
  context.fillStyle = colour("panel");
  context.fillRect(scale.left, top + 12, scale.span, height - 14);
  context.fillStyle = context.strokeStyle = colour(curve.tone);
  if (curve.bars) {
    const wide = Math.max(1, scale.each * 0.8);
    for (let step = 0; step < facts.count; step++) {
      const [from, to] = [y(Math.max(0, low)), y(at(step))];
      context.fillStyle = colour(at(step) < 0 ? "bad" : curve.tone);
      context.fillRect(scale.at(step) - wide / 2, Math.min(from, to), wide, Math.abs(to - from));
    }
  } else {
    context.lineWidth = 1.6;
    context.beginPath();
    for (let step = 0; step < facts.count; step++) context.lineTo(scale.at(step), y(at(step)));
    context.stroke();
  }
  context.fillStyle = colour("soft");
  context.textAlign = "left";
  context.textBaseline = "top";
  context.fillText(curve.name, scale.left + 5, top - 1);
  const [above, below] = bounds(high, low);
  yLabel(context, above, top + 16);
  yLabel(context, below, top + height - 6);
}

// Bars: without that step alone; line: without anything up to it. Both for the step under the cursor.
function drawPast(canvas, { facts, agent, step }) {
  const height = 120;
  const { context, width } = prepare(canvas, height + AXIS);
  const scale = timeScale(width, facts.count);
  const y = (share) => 6 + (height - 8) * (1 - share);
  context.fillStyle = colour("panel");
  context.fillRect(scale.left, y(1), scale.span, y(0) - y(1));
  for (const share of [0, 0.5, 1]) yLabel(context, percent(share), Math.max(8, y(share)));
  const start = facts.startOf(agent, step);
  const groups = Math.floor((step - start) / facts.group);
  context.fillStyle = colour("warm");
  for (let g = 0; g < groups; g++) {
    const share = facts.change("skipped", agent, step, g);
    const left = scale.left + (start + g * facts.group) * scale.each;
    const wide = facts.group * scale.each;
    context.fillRect(left + wide * 0.1, y(share), Math.max(1, wide * 0.8), y(0) - y(share));
  }
  if (groups) {
    context.strokeStyle = colour("accent");
    context.lineWidth = 2;
    context.beginPath();
    for (let g = 0; g < groups; g++) {
      const left = scale.left + (start + g * facts.group) * scale.each;
      const share = y(facts.change("erased", agent, step, g));
      context.lineTo(left, share);
      context.lineTo(left + facts.group * scale.each, share);
    }
    context.stroke();
  }
  drawStarts(context, scale, facts.startsOf[agent], height);
  drawAxis(context, scale, facts.count, height);
  drawCursor(context, scale, step, height);
}

let lastMatrix = { key: "", picture: null };

// One pixel per step and group of earlier steps; the last picture is kept, since it changes with the episode only.
function matrixPicture(facts, agent, start, count, columns, kind) {
  const key = [agent, start, kind, document.documentElement.dataset.theme].join();
  if (lastMatrix.key !== key) {
    const [none, full, empty] = [rgb("panel"), rgb("warm"), rgb("card")];
    const picture = heatPicture(columns, count,
      (g, row) => (g < Math.floor(row / facts.group) ? facts.change(kind, agent, start + row, g) : -1),
      (share) => (share < 0 ? empty : mix(none, full, share)));
    lastMatrix = { key, picture };
  }
  return lastMatrix.picture;
}

// All steps of the current episode against all earlier steps.
function drawMatrix(canvas, { facts, agent, step, matrixKind }) {
  const start = facts.startOf(agent, step);
  const end = facts.endOf(agent, step);
  const count = end - start;
  const columns = Math.max(1, Math.floor((count - 1) / facts.group));
  const wide = Math.max(1, canvas.clientWidth - GUTTER - 6);
  const tall = Math.min(wide, 300);
  const { context } = prepare(canvas, tall + AXIS);
  const picture = matrixPicture(facts, agent, start, count, columns, matrixKind);
  context.imageSmoothingEnabled = columns > wide;
  context.drawImage(picture, GUTTER, 0, (wide * columns * facts.group) / count, tall);
  context.strokeStyle = colour("line");
  context.lineWidth = 1;
  context.strokeRect(GUTTER + 0.5, 0.5, wide - 1, tall - 1);
  context.strokeStyle = colour("ink");
  context.strokeRect(GUTTER + 0.5, ((step - start) / count) * tall, wide - 1, Math.max(2, tall / count));
  yLabel(context, String(start), 7);
  yLabel(context, String(end - 1), tall - 7);
  yLabel(context, "now", tall / 2);
  context.textBaseline = "top";
  context.textAlign = "left";
  context.fillText(String(start), GUTTER, tall + 4);
  context.textAlign = "right";
  context.fillText(String(end - 1), GUTTER + wide, tall + 4);
  context.textAlign = "center";
  context.fillText("left out", GUTTER + wide / 2, tall + 4);
  return { start, count, tall };
}
