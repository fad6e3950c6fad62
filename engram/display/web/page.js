"use strict";
// What all pages share: reading the data, the theme, and drawing on canvases.

const TYPES = {
  uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, int32: Int32Array, float32: Float32Array,
};

// The facts of the page, with each array as { data, shape } by its name.
async function readData() {
  const facts = JSON.parse(document.getElementById("data").textContent);
  const packed = Uint8Array.from(atob(facts.packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  facts.packed = null;
  facts.arrays = {};
  for (const { name, dtype, shape, offset } of facts.layout) {
    const size = shape.reduce((product, length) => product * length, 1);
    facts.arrays[name] = { data: new TYPES[dtype](buffer, offset, size), shape };
  }
  return facts;
}

// The theme follows the system until the button is pressed.
function setUpTheme(button, redraw) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const apply = () => {
    const theme = chosen ?? (system.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    button.textContent = theme === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use the ${theme === "dark" ? "light" : "dark"} theme`);
    redraw();
  };
  button.addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function rgb(name) {
  const text = colour(name);
  return [1, 3, 5].map((start) => parseInt(text.slice(start, start + 2), 16));
}

// A canvas of this height, as wide as its place, sharp on any screen. Returns the context and the size in CSS pixels.
function prepare(canvas, height) {
  const width = Math.max(1, canvas.clientWidth);
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "11px system-ui, sans-serif";
  return { context, width, height };
}

// A copy of a canvas, to draw a cursor over it again and again.
function copyOf(canvas) {
  const copy = document.createElement("canvas");
  copy.width = canvas.width;
  copy.height = canvas.height;
  copy.getContext("2d").drawImage(canvas, 0, 0);
  return copy;
}

function mix(first, second, share) {
  return first.map((value, i) => value + (second[i] - value) * share);
}

// A picture with one pixel per value; `shade` gives the colour of a value as [red, green, blue].
function heatPicture(columns, rows, valueAt, shade) {
  const picture = document.createElement("canvas");
  picture.width = columns;
  picture.height = rows;
  const context = picture.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let y = 0, at = 0; y < rows; y++) {
    for (let x = 0; x < columns; x++, at += 4) {
      const shown = shade(valueAt(x, y));
      image.data[at] = shown[0];
      image.data[at + 1] = shown[1];
      image.data[at + 2] = shown[2];
      image.data[at + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
  return picture;
}

function percent(share) {
  return `${Math.round(100 * share)}%`;
}

function number(value) {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1000 || size < 0.001) return value.toExponential(1);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

function element(kind, properties = {}, ...children) {
  const made = document.createElement(kind);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}
