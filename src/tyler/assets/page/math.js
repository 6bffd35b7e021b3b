// Mathematics in an answer, typeset by Temml into MathML: nothing is loaded, and what cannot be read stays as it was written.

import temml from "./temml.js";
import { el } from "./dom.js";

const FORMULA = /\$\$([^$]+)\$\$|\$([^$\n]+)\$|\\\[([^]+?)\\\]|\\\(([^\n]+?)\\\)|\\boxed\{[^{}\n]*\}/g;

/** The formulas of a text: where each begins and ends, its source, and whether it stands on a line of its own. */
export function formulas(text) {
  return [...text.matchAll(FORMULA)].map((found) => ({
    start: found.index,
    end: found.index + found[0].length,
    written: found[0],
    source: found.slice(1).find((part) => part !== undefined) ?? found[0],
    display: found[1] !== undefined || found[3] !== undefined,
  }));
}

/** One formula as an element that shows what was written on hover; null where it is not TeX. */
export function typeset({ written, source, display }) {
  const node = el("span", { class: display ? "math display" : "math", title: written });
  try {
    temml.render(source, node, { displayMode: display, throwOnError: true, maxExpand: 100, maxSize: [20, 20], trust: false });
  } catch {
    return null;
  }
  return node;
}

/** A text with its formulas typeset. */
export function prose(text) {
  const span = el("span", {}, text);
  typesetSpans([span], [{ text }]);
  return [...span.childNodes];
}

/**
 * Typeset the formulas of an answer whose steps are shown by `spans`. A formula stands in the span of its first token;
 * its other tokens become empty, and a token that holds more than the formula keeps the rest.
 */
export function typesetSpans(spans, steps) {
  const found = formulas(steps.map((step) => step.text ?? "").join(""));
  const shown = found.map((formula) => ({ ...formula, node: typeset(formula) })).filter((formula) => formula.node);
  let start = 0;
  steps.forEach((step, at) => {
    const text = step.text ?? "", end = start + text.length, children = [];
    let kept = start;
    for (const formula of text ? shown : []) {
      if (formula.start >= end || formula.end <= start) continue;
      children.push(text.slice(kept - start, Math.max(kept, formula.start) - start));
      if (formula.start >= start) children.push(formula.node);
      kept = Math.min(end, formula.end);
    }
    if (children.length) spans[at].replaceChildren(...children, text.slice(kept - start));
    start = end;
  });
}
