// Operators have a colour and a shape each, so that neither is needed alone. The colours come from the server.

import { svg } from "./dom.js";

const SHAPES = {
  circle: "M8 1.5a6.5 6.5 0 1 1 0 13a6.5 6.5 0 1 1 0-13z",
  square: "M2.5 2.5h11v11h-11z",
  triangle: "M8 1.5L15 14H1z",
  diamond: "M8 .8L15.2 8L8 15.2L.8 8z",
  hexagon: "M8 1l6.1 3.5v7L8 15l-6.1-3.5v-7z",
  cross: "M5.5 1.5h5v4h4v5h-4v4h-5v-4h-4v-5h4z",
};
const NAMED = { global: "circle", state: "square", procedure: "triangle" };
const OTHERS = ["diamond", "hexagon", "cross"];
const GREY = "#6e7682";
const known = new Map();

/** Learn the model's operators: [{name, latents, colour}]. */
export function setOperators(operators) {
  known.clear();
  operators.forEach((one, index) => known.set(one.name, { ...one, index }));
}

/** Their names, in the order of the policy's rows. */
export function operatorNames() {
  return [...known.keys()];
}

export function operators() {
  return [...known.values()].map(({ name, latents, colour }) => ({ name, latents, colour }));
}

export function colourOf(name) {
  return known.get(name)?.colour ?? GREY;
}

export function shapeOf(name) {
  return NAMED[name] ?? OTHERS[(known.get(name)?.index ?? 0) % OTHERS.length];
}

/** The shape as a small picture, hidden from screen readers: its name stands beside it. */
export function sign(name, filled = true) {
  const path = svg("path", { d: SHAPES[name === null ? "circle" : shapeOf(name)] });
  const box = { viewBox: "0 0 16 16", class: filled ? "sign" : "sign hollow", "aria-hidden": "true" };
  return svg("svg", { ...box, vars: name === null ? {} : { "--op": colourOf(name) } }, path);
}
