"use strict";
// The world of a replay: a grid of objects, the environment's own pictures, or the observation as bars.

const KNOWN = {
  agent: "#2f66b5", wall: "#7b8794", goal: "#1d8a5f", altar: "#8e4fb8", mine: "#8a6a3b", generator: "#b98900",
  cue_1: "#b8327a", cue_2: "#0f7f93",
};
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
      if (held && cell >= 12) drawCount(context, x, y, cell, held);
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

function drawCount(context, x, y, cell, count) {
  const radius = Math.max(5, cell * 0.17);
  context.beginPath();
  context.arc(x + cell - radius, y + radius, radius, 0, 2 * Math.PI);
  context.fillStyle = colour("card");
  context.fill();
  context.fillStyle = colour("ink");
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

function makeObservations(facts, place) {
  const { data, shape } = facts.arrays.observations;
  const [, agents, numbers] = shape;
  const { low, high, names } = facts.world;
  const caption = "This environment has no picture. The bars are the numbers of the observation, each between its smallest and largest value in this recording.";
  const canvas = element("canvas");
  place.append(element("p", { className: "soft small caption", textContent: caption }), canvas);
  function draw(step, selected) {
    const line = numbers <= 24 ? 18 : Math.max(2, 432 / numbers);
    const { context, width } = prepare(canvas, Math.ceil(numbers * line) + 4);
    const left = numbers <= 24 ? Math.min(130, 8 + Math.max(...names.map((name) => context.measureText(name).width))) : 4, right = numbers <= 24 ? 52 : 4;
    context.textBaseline = "middle";
    for (let i = 0; i < numbers; i++) {
      const share = data[(step * agents + selected) * numbers + i] / 255;
      const y = i * line + 2;
      context.fillStyle = colour("panel");
      context.fillRect(left, y, width - left - right, line - Math.min(4, line / 4));
      context.fillStyle = colour("accent");
      context.fillRect(left, y, Math.max(share ? 1 : 0, share * (width - left - right)), line - Math.min(4, line / 4));
      if (numbers > 24) continue;
      context.fillStyle = colour("soft");
      context.textAlign = "right";
      context.fillText(names[i], left - 6, y + line / 2 - 1);
      context.fillText(number(low[i] + share * (high[i] - low[i])), width - 2, y + line / 2 - 1);
    }
    return null;
  }
  return { draw };
}
