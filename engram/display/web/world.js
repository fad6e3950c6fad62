"use strict";
// The world of a replay: a grid of objects, the environment's own pictures, or the observation as bars.

const KNOWN = {
  agent: "#2f66b5", wall: "#7b8794", goal: "#1d8a5f", altar: "#8e4fb8", mine: "#8a6a3b", generator: "#b98900",
  cue_1: "#b8327a", cue_2: "#0f7f93",
};
const MOST_BARS = 24;
const ROOM_FOR_COUNT = 30; // pixels of a cell from which a count beside the label leaves the label readable
const OTHER = ["#b0413e", "#4d7c2b", "#5b5fc7", "#a8487f", "#2b7a78", "#96621a", "#6b7f10", "#7a4fa0"];

function kindColours(kinds) {
  let next = 0;
  return kinds.map((kind) => KNOWN[kind] ?? OTHER[next++ % OTHER.length]);
}

// One or two letters for each kind, different ones where possible: cue_1 is c1, goal is g.
function kindLabels(kinds) {
  const used = new Set();
  return kinds.map((kind) => {
    const letters = kind.replace(/[^a-zA-Z0-9]/g, "") || "?";
    const digits = /\d+$/.exec(letters)?.[0] ?? "";
    const candidates = [letters[0] + digits, letters.slice(0, 2), letters[0] + letters[letters.length - 1]];
    const label = candidates.find((candidate) => !used.has(candidate)) ?? candidates[0];
    used.add(label);
    return label;
  });
}

function makeWorld(facts, place, legend) {
  const make = { grid: makeGrid, pictures: makePictures, observations: makeObservations };
  return make[facts.world.form](facts, place, legend);
}

function makeGrid(facts, place, legend) {
  const { kinds, height, width, inventories } = facts.world;
  const colours = kindColours(kinds);
  const labels = kindLabels(kinds);
  const objects = facts.arrays.objects.data;
  const offsets = facts.arrays.objectOffsets.data;
  const canvas = element("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "The world");
  place.append(canvas);
  kinds.forEach((kind, i) => {
    const chip = element("i", { textContent: kind === "agent" ? "" : kind === "wall" ? "" : labels[i] });
    chip.style.background = colours[i];
    if (kind === "agent") chip.style.borderRadius = "50%";
    legend.append(element("span", {}, chip, kind.replaceAll("_", " ")));
  });
  if (inventories.length > 1) {
    const dot = element("i");
    dot.style.cssText = "background: var(--warm); border-radius: 50%; transform: scale(0.5)";
    legend.append(element("span", {}, dot, "holds items"));
  }
  if (facts.window[0]) legend.append(element("span", { textContent: "⬚ what the agent sees" }));

  function draw(step, selected) {
    const cell = Math.min(place.clientWidth / width, 480 / height, 64);
    canvas.style.width = `${Math.floor(cell * width)}px`;
    const { context } = prepare(canvas, Math.floor(cell * height));
    context.fillStyle = colour("panel");
    context.fillRect(0, 0, cell * width, cell * height);
    context.textAlign = "center";
    context.textBaseline = "middle";
    let own = null;
    for (let i = offsets[step]; i < offsets[step + 1]; i++) {
      const [kind, row, column, agent, inventory] = objects.subarray(5 * i, 5 * i + 5);
      const x = column * cell, y = row * cell;
      if (agent >= 0) {
        drawAgent(context, x, y, cell, agent, agent === selected, colours[kind]);
        if (agent === selected) own = { row, column, inventory };
      } else {
        drawObject(context, x, y, cell, kinds[kind] === "wall" ? "" : labels[kind], colours[kind], kinds[kind] === "wall");
      }
      const held = Object.values(inventories[inventory]).reduce((sum, count) => sum + count, 0);
      if (held) drawCount(context, x, y, cell, held);
    }
    if (own && facts.window[0]) {
      const [tall, wide] = facts.window;
      context.strokeStyle = colour("ink");
      context.lineWidth = 1.5;
      context.setLineDash([4, 3]);
      const left = Math.max(0, own.column - (wide - 1) / 2), top = Math.max(0, own.row - (tall - 1) / 2);
      const right = Math.min(width, own.column + (wide + 1) / 2), bottom = Math.min(height, own.row + (tall + 1) / 2);
      context.strokeRect(left * cell + 1, top * cell + 1, (right - left) * cell - 2, (bottom - top) * cell - 2);
      context.setLineDash([]);
    }
    return own === null || inventories.length === 1 ? null : inventories[own.inventory];
  }
  return { draw };
}

function drawObject(context, x, y, cell, label, fill, solid) {
  const gap = solid ? 0.5 : cell * 0.1;
  context.fillStyle = fill;
  context.beginPath();
  context.roundRect(x + gap, y + gap, cell - 2 * gap, cell - 2 * gap, solid ? 1 : cell * 0.18);
  context.fill();
  if (label && cell >= 11) {
    context.fillStyle = "#ffffff";
    context.font = `600 ${Math.max(8, cell * 0.42)}px system-ui, sans-serif`;
    context.fillText(label, x + cell / 2, y + cell / 2 + 0.5);
  }
}

function drawAgent(context, x, y, cell, agent, selected, fill) {
  context.beginPath();
  context.arc(x + cell / 2, y + cell / 2, cell * 0.4, 0, 2 * Math.PI);
  context.globalAlpha = selected ? 1 : 0.65;
  context.fillStyle = fill;
  context.fill();
  context.globalAlpha = 1;
  if (selected) {
    context.lineWidth = 2.5;
    context.strokeStyle = colour("ink");
    context.stroke();
  }
  if (cell >= 11) {
    context.fillStyle = "#ffffff";
    context.font = `600 ${Math.max(8, cell * 0.4)}px system-ui, sans-serif`;
    context.fillText(String(agent), x + cell / 2, y + cell / 2 + 0.5);
  }
}

// How many items are held, in a corner; in small cells only a dot.
function drawCount(context, x, y, cell, count) {
  const shown = cell >= ROOM_FOR_COUNT;
  const radius = shown ? cell * 0.17 : Math.max(1.5, cell * 0.14);
  context.beginPath();
  context.arc(x + cell - radius, y + radius, radius, 0, 2 * Math.PI);
  context.fillStyle = colour("warm");
  context.fill();
  if (!shown) return;
  context.fillStyle = colour("card");
  context.font = `600 ${Math.max(8, cell * 0.24)}px system-ui, sans-serif`;
  context.fillText(String(count), x + cell - radius, y + radius + 0.5);
}

function makePictures(facts, place) {
  const bytes = facts.arrays.pictures.data;
  const offsets = facts.arrays.pictureOffsets.data;
  const shown = element("img", { alt: "The environment" });
  const urls = new Array(offsets.length - 1);
  place.append(shown);
  function draw(step) {
    urls[step] ??= URL.createObjectURL(
      new Blob([bytes.subarray(offsets[step], offsets[step + 1])], { type: "image/png" }));
    shown.src = urls[step];
    return null;
  }
  return { draw };
}

// Parts of up to 24 numbers are bars with figures, larger ones maps: of an image its cells, the channels averaged.
function makeObservations(facts, place) {
  const { data, shape } = facts.arrays.observations;
  const [, agents, numbers] = shape;
  const caption = "This environment has no picture. These are the numbers of the observation, each between its smallest and largest value in this recording.";
  place.append(element("p", { className: "soft small caption", textContent: caption }));
  let first = 0;
  const parts = facts.world.parts.map(({ name, shape }) => {
    const size = shape.reduce((product, length) => product * length, 1);
    const isMap = size > MOST_BARS, canvas = element("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", name || "observation");
    if (isMap) place.append(element("p", { className: "small", textContent: `${name || "observation"}: ${shape.join(" × ")}` }));
    place.append(canvas);
    const part = { name, shape, size, first, canvas, paint: isMap ? drawMap : drawBars };
    first += size;
    return part;
  });
  function draw(step, selected) {
    const start = (step * agents + selected) * numbers;
    for (const part of parts) part.paint(part, data.subarray(start + part.first, start + part.first + part.size), facts.world);
    return null;
  }
  return { draw };
}

function drawBars({ name, first, canvas }, values, { low, high }) {
  const line = 18, right = 52;
  const { context, width } = prepare(canvas, values.length * line + 4);
  const names = [...values.keys()].map((i) => (values.length === 1 && name ? name : `${name}[${i}]`));
  const left = Math.min(130, 8 + Math.max(...names.map((each) => context.measureText(each).width)));
  const span = width - left - right;
  context.textBaseline = "middle";
  values.forEach((value, i) => {
    const share = value / 255, y = i * line + 2;
    context.fillStyle = colour("panel");
    context.fillRect(left, y, span, line - 4);
    context.fillStyle = colour("accent");
    context.fillRect(left, y, Math.max(share ? 1 : 0, share * span), line - 4);
    context.fillStyle = colour("soft");
    context.textAlign = "right";
    context.fillText(names[i], left - 6, y + line / 2 - 1);
    context.fillText(number(low[first + i] + share * (high[first + i] - low[first + i])), width - 2, y + line / 2 - 1);
  });
}

function drawMap({ shape, canvas }, values) {
  const isImage = shape.length === 3;
  const wide = isImage ? shape[1] : Math.ceil(Math.sqrt(2 * values.length));
  const tall = isImage ? shape[0] : Math.ceil(values.length / wide);
  const channels = isImage ? shape[2] : 1;
  const cell = Math.min(canvas.parentElement.clientWidth / wide, 240 / tall, 32);
  canvas.style.width = `${Math.floor(cell * wide)}px`;
  const { context } = prepare(canvas, Math.floor(cell * tall));
  const empty = rgb("panel"), full = rgb("accent");
  for (let i = 0; i < values.length / channels; i++) {
    let sum = 0;
    for (let channel = 0; channel < channels; channel++) sum += values[i * channels + channel];
    const [red, green, blue] = mix(empty, full, sum / channels / 255);
    context.fillStyle = `rgb(${red} ${green} ${blue})`;
    context.fillRect((i % wide) * cell, Math.floor(i / wide) * cell, cell - 0.5, cell - 0.5);
  }
}
