// Elements, never markup: whatever a model wrote is put in as text.

const SVG = "http://www.w3.org/2000/svg";

function made(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element; `onclick` and the like are listeners, `vars` custom properties of its style. */
export function el(tag, attributes = {}, ...children) {
  return made(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return made(document.createElementNS(SVG, tag), attributes, children);
}

/** "1 call", "2 calls". */
export function counted(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

/** A probability as people read it. */
export function percent(share) {
  if (share === 0) return "0%";
  if (share < 0.001) return "<0.1%";
  return `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;
}

/** A token where it would not be seen. */
export function visible(text) {
  return text.replace(/\n/g, "⏎").replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length)) || "∅";
}
