// p(operator) at every decision, as bars over positions. A cursor tells what stands under it, by pointer or arrow keys.

import { el, svg, percent, visible } from "./dom.js";
import { colourOf, operatorNames, sign } from "./operators.js";

const HEIGHT = 48;
const FEWEST = 64; // a short answer does not get wide bars
const KEYS = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10 };

export class Ribbon {
  /** `point` is called with the position under the cursor, or null. */
  constructor(point = () => {}) {
    this.steps = [];
    this.cursor = null;
    this.point = point;
    this.bars = svg("g");
    this.line = svg("rect", { class: "cursor", y: 0, height: HEIGHT, width: 1, visibility: "hidden" });
    this.chart = svg("svg", { class: "chart", preserveAspectRatio: "none", "aria-hidden": "true" }, this.line, this.bars);
    this.track = el(
      "div",
      {
        class: "track",
        role: "slider",
        tabindex: "0",
        "aria-label": "Probability of an operator at each step",
        "aria-valuemin": "1",
        onkeydown: (event) => this.key(event),
        onpointermove: (event) => this.hover(event),
        onpointerdown: (event) => this.hover(event),
        onpointerleave: () => this.move(null),
        onblur: () => this.move(null),
      },
      this.chart,
    );
    this.told = el("p", { class: "told" });
    this.node = el("figure", { class: "ribbon", hidden: true }, this.caption(), this.track, this.told);
    this.tell();
  }

  caption() {
    const keys = operatorNames().map((name) => el("span", { class: "key" }, sign(name), name));
    return el("figcaption", {}, el("span", {}, "p(operator)"), el("span", { class: "keys" }, keys));
  }

  /** A decision: what was chosen there and p(operator) of each operator. */
  add(step) {
    if (!step.probs?.length) return;
    this.node.hidden = false;
    this.steps.push(step);
    this.draw(this.steps.length - 1);
    this.fit();
  }

  /** All decisions at once. */
  show(steps) {
    this.steps = [];
    this.bars.replaceChildren();
    this.node.hidden = true;
    steps.forEach((step) => this.add(step));
  }

  fit() {
    const count = this.steps.length;
    this.chart.setAttribute("viewBox", `0 0 ${Math.max(count, FEWEST)} ${HEIGHT}`);
    this.track.setAttribute("aria-valuemax", count);
    if (this.cursor === null) this.track.setAttribute("aria-valuenow", count);
    if (this.cursor === null) this.track.setAttribute("aria-valuetext", `${count} steps; arrow keys read them`);
  }

  draw(index) {
    const { probs, call } = this.steps[index];
    let top = HEIGHT;
    operatorNames().forEach((name, place) => {
      const height = (probs[place] ?? 0) * HEIGHT;
      if (height < 0.05) return;
      top -= height;
      this.bars.append(
        svg("rect", { x: index + 0.1, width: 0.8, y: top, height: Math.max(height, 0.6), vars: { fill: colourOf(name) } }),
      );
    });
    if (call) this.bars.append(svg("rect", { class: "made", x: index, width: 1, y: HEIGHT - 2, height: 2 }));
  }

  key(event) {
    const last = this.steps.length - 1;
    const places = { Home: 0, End: last };
    if (!(event.key in KEYS) && !(event.key in places)) return;
    event.preventDefault();
    const from = this.cursor ?? (KEYS[event.key] > 0 ? -1 : last + 1);
    this.move(places[event.key] ?? from + KEYS[event.key]);
  }

  hover(event) {
    const box = this.track.getBoundingClientRect();
    const place = Math.floor(((event.clientX - box.left) / box.width) * Math.max(this.steps.length, FEWEST));
    this.move(place < this.steps.length ? place : null);
  }

  move(place) {
    this.cursor = place === null || !this.steps.length ? null : Math.min(Math.max(place, 0), this.steps.length - 1);
    this.line.setAttribute("visibility", this.cursor === null ? "hidden" : "visible");
    if (this.cursor !== null) this.line.setAttribute("x", this.cursor);
    this.tell();
    this.point(this.cursor);
  }

  tell() {
    if (this.cursor === null) {
      this.told.replaceChildren("Move over the bars, or use the arrow keys, to read a step.");
      this.fit();
      return;
    }
    const { probs, call, text } = this.steps[this.cursor];
    const chosen = call ? call.operator : text === undefined ? "the end" : `“${visible(text)}”`;
    const shares = operatorNames().map((name, place) => `${name} ${percent(probs[place] ?? 0)}`);
    const line = `Step ${this.cursor + 1}, ${chosen}: ${shares.join(", ")}`;
    this.told.replaceChildren(line);
    this.track.setAttribute("aria-valuenow", this.cursor + 1);
    this.track.setAttribute("aria-valuetext", line);
  }
}
