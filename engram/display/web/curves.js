"use strict";
// Charts of curves over a list of places, with a reader for pointer and keyboard.

const LEFT = 44, RIGHT = 10, TOP = 8, BELOW = 36;

// series: { name, values, low, high, tone, dash }; a value is null where it is unknown.
function makeCurves(canvas, readout, describe) {
  let chart = null, at = null;
  const x = (width, index) => LEFT + (chart.places.length < 2 ? 0.5 : index / (chart.places.length - 1)) * (width - LEFT - RIGHT);

  function draw() {
    if (chart === null) return;
    const { context, width, height } = prepare(canvas, 230);
    const floor = height - BELOW;
    const known = chart.series.flatMap(({ values, low, high }) => [values, low ?? [], high ?? []].flat()).filter((value) => value !== null);
    const bottom = chart.bottom ?? Math.min(0, ...known), top = Math.ceil(5 * Math.max(chart.top ?? 0, ...known) - 1e-9) / 5;
    const y = (value) => TOP + (floor - TOP) * (1 - (Math.max(bottom, value) - bottom) / (top - bottom));
    drawGrid(context, width, floor, bottom, top, y);
    for (const mark of chart.marks ?? []) drawMark(context, mark, (index) => x(width, index), floor);
    for (const series of chart.series) drawSeries(context, series, (index) => x(width, index), y);
    drawPlaces(context, width, floor);
    if (at !== null) {
      context.fillStyle = colour("ink");
      context.fillRect(x(width, at) - 0.5, TOP, 1, floor - TOP);
      for (const series of chart.series) {
        if (series.values[at] === null) continue;
        context.fillStyle = colour(series.tone);
        context.beginPath();
        context.arc(x(width, at), y(series.values[at]), 4, 0, 2 * Math.PI);
        context.fill();
      }
    }
    readout.textContent = at === null ? "" : describe(chart, at);
  }

  function drawGrid(context, width, floor, bottom, top, y) {
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let part = 0; part <= 4; part++) {
      const value = bottom + ((top - bottom) * part) / 4;
      context.fillStyle = colour("line");
      context.fillRect(LEFT, Math.round(y(value)), width - LEFT - RIGHT, 1);
      context.fillStyle = colour("soft");
      context.fillText(percent(value), LEFT - 6, y(value));
    }
  }

  function drawPlaces(context, width, floor) {
    context.fillStyle = colour("soft");
    context.textAlign = "center";
    context.textBaseline = "top";
    let free = -Infinity;
    chart.places.forEach((place, index) => {
      const label = String(place), wide = context.measureText(label).width + 10, middle = x(width, index);
      if (middle - wide / 2 < free) return;
      context.fillText(label, middle, floor + 6);
      free = middle + wide / 2;
    });
    context.fillText(chart.label, LEFT + (width - LEFT - RIGHT) / 2, floor + 20);
  }

  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    at = Math.max(0, Math.min(chart.places.length - 1, Math.round(share * (chart.places.length - 1))));
    draw();
  });
  canvas.addEventListener("pointerleave", () => { at = null; draw(); });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    at = at === null ? 0 : Math.max(0, Math.min(chart.places.length - 1, at + by));
    draw();
  });
  return { draw, show(shown) { chart = shown; at = null; draw(); } };
}

function drawMark(context, { index, name }, x, floor) {
  context.strokeStyle = colour("soft");
  context.setLineDash([4, 4]);
  context.beginPath();
  context.moveTo(x(index), TOP);
  context.lineTo(x(index), floor);
  context.stroke();
  context.setLineDash([]);
  context.fillStyle = colour("soft");
  context.textBaseline = "top";
  context.textAlign = x(index) > 200 ? "right" : "left";
  context.fillText(` ${name} `, x(index), TOP);
}

function drawSeries(context, { values, low, high, tone, dash }, x, y) {
  context.fillStyle = context.strokeStyle = colour(tone);
  if (low) {
    context.globalAlpha = 0.18;
    context.beginPath();
    values.forEach((_, index) => { if (high[index] !== null) context.lineTo(x(index), y(high[index])); });
    for (let index = values.length - 1; index >= 0; index--) if (low[index] !== null) context.lineTo(x(index), y(low[index]));
    context.fill();
    context.globalAlpha = 1;
  }
  context.lineWidth = 2;
  context.setLineDash(dash ?? []);
  context.beginPath();
  let drawing = false;
  values.forEach((value, index) => {
    if (value === null) { drawing = false; return; }
    if (drawing) context.lineTo(x(index), y(value)); else context.moveTo(x(index), y(value));
    drawing = true;
  });
  context.stroke();
  context.setLineDash([]);
  values.forEach((value, index) => {
    if (value === null || values.length > 40) return;
    context.beginPath();
    context.arc(x(index), y(value), 2.5, 0, 2 * Math.PI);
    context.fill();
  });
}
