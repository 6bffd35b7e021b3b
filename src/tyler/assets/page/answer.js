// One answer: its text with operator blocks in place, the ribbon, the budget, and what can be asked of a block.

import { el, counted, percent } from "./dom.js";
import { colourOf, operatorNames, setOperators, shapeOf, sign } from "./operators.js";
import { prose, typesetSpans } from "./math.js";
import { Ribbon } from "./ribbon.js";
import { lensView } from "./lens.js";

const ENDS = { eos: "ended by itself", stop: "reached a stop string", length: "cut off at its limit", abort: "stopped" };
const MOST_DOTS = 12;

export class AnswerView {
  /**
   * `answer` is {question, title, note, settings, steps, trajectory, lens}; steps are {text, probs} or {call, probs}.
   * `actions` is what can be done with it: {replay, lens, buttons}; an exported answer has none.
   */
  constructor(answer, actions = {}) {
    this.answer = answer;
    this.actions = actions;
    this.spans = [];
    this.open = null;
    this.calls = 0;
    this.ribbon = new Ribbon((place) => this.point(place));
    this.text = el("div", { class: "text" });
    this.status = el("p", { class: "status" });
    this.error = el("div", { class: "error", role: "alert", hidden: true });
    this.meter = el("div", { class: "meter" });
    this.block = el("div", { class: "block-place" });
    this.facts = el("p", { class: "facts" });
    this.bar = el("div", { class: "buttons" });
    this.node = el(
      "article",
      { class: "answer", "aria-label": answer.title },
      el("header", {}, el("h3", {}, answer.title), answer.note && el("p", { class: "note" }, answer.note), this.meter),
      this.text, this.error, this.block, this.ribbon.node, this.facts, this.status, this.bar,
    );
    this.showBudget();
    if (answer.steps.length || answer.trajectory) this.rebuild();
  }

  /** What happened, as it happens. */
  add(steps) {
    for (const step of steps) {
      this.answer.steps.push(step);
      this.append(step);
    }
    this.showBudget();
  }

  append(step) {
    const node = step.call ? this.chip(step.call) : el("span", { class: "token" }, step.text ?? "");
    this.spans.push(node);
    this.text.append(node);
    this.ribbon.add(step);
  }

  /** The end: the trajectory has the last word about the text and p(operator). */
  finish(trajectory) {
    this.answer.trajectory = trajectory;
    const text = this.answer.steps.map((step) => step.text ?? "").join("");
    if (text !== trajectory.text) this.answer.steps = stepsOf(trajectory);
    else if (trajectory.operator_probs?.length > this.answer.steps.length) {
      this.answer.steps.push({ probs: trajectory.operator_probs[this.answer.steps.length] });
    }
    this.rebuild();
  }

  rebuild() {
    const { steps, trajectory } = this.answer;
    const { open } = this;
    if (open) this.toggle(open.index, open.button);
    this.text.replaceChildren();
    this.spans = [];
    this.calls = 0;
    steps.forEach((step) => this.append(step));
    const chip = this.text.querySelectorAll(".chip")[open?.index];
    if (chip) this.toggle(open.index, chip);
    this.ribbon.show(decisions(this.answer));
    this.showBudget();
    if (trajectory) {
      typesetSpans(this.spans, steps);
      this.showFacts(trajectory);
    }
  }

  /** One invocation as a button of its colour and shape. */
  chip(call) {
    const index = this.calls++;
    const where = `after ${counted(call.position, "token")}`;
    return el(
      "button",
      {
        class: "chip",
        type: "button",
        "data-shape": shapeOf(call.operator),
        "aria-expanded": "false",
        "aria-label": `Operator ${call.operator}, ${counted(call.latents, "latent")}, ${where}`,
        vars: { "--op": colourOf(call.operator) },
        onclick: (event) => this.toggle(index, event.currentTarget),
      },
      sign(call.operator), call.operator, el("span", { class: "times" }, ` ×${call.latents}`),
    );
  }

  toggle(index, button) {
    const opened = this.open?.index === index ? null : { index, button };
    this.open?.button.setAttribute("aria-expanded", "false");
    this.block.replaceChildren();
    this.open = opened;
    if (!opened) return;
    button.setAttribute("aria-expanded", "true");
    this.block.append(this.card(index));
    this.block.scrollIntoView({ block: "nearest" });
  }

  card(index) {
    const step = this.answer.steps.filter((one) => one.call)[index];
    const { call, probs } = step;
    const chance = probs?.[operatorNames().indexOf(call.operator)];
    const facts = [
      `${counted(call.latents, "latent")} after ${counted(call.position, "visible token")}`,
      call.milliseconds ? `${call.milliseconds.toFixed(1)} ms` : null,
      chance !== undefined ? `drawn at p = ${percent(chance)}` : null,
    ];
    const reading = this.answer.lens?.[index];
    const place = el("div", { class: "reading", "aria-live": "polite" }, reading && lensView(reading));
    const act = (name, label) =>
      this.actions[name] &&
      this.answer.trajectory &&
      el("button", { type: "button", onclick: () => this.actions[name](this, index, place) }, label);
    const close = () => { const { button } = this.open; this.toggle(index, button); button.focus(); };
    return el(
      "section",
      { class: "card", "aria-label": `Invocation ${index + 1}: ${call.operator}`, vars: { "--op": colourOf(call.operator) },
        onkeydown: (event) => event.key === "Escape" && close() },
      el("h4", {}, sign(call.operator), ` ${call.operator} ×${call.latents}`),
      el("p", {}, facts.filter(Boolean).join(" · ")),
      el("div", { class: "buttons" }, act("replay", "Replay without this call"), !reading && act("lens", "Operator lens"),
        el("button", { type: "button", class: "quiet", onclick: close }, "Close")),
      place,
    );
  }

  /** The budget as a gauge: a shape for each call that was made, a ring for each that is left. */
  showBudget() {
    const calls = this.answer.steps.filter((step) => step.call).map((step) => step.call.operator);
    const budget = this.answer.trajectory?.budget ?? this.answer.settings?.budget ?? null;
    if (!operatorNames().length && !calls.length) return;
    const dots = calls.slice(0, MOST_DOTS).map((name) => sign(name));
    const left = budget === null ? 0 : Math.max(0, Math.min(budget, MOST_DOTS) - calls.length);
    const rings = Array.from({ length: left }, () => sign(null, false));
    const more = calls.length > MOST_DOTS ? `+${calls.length - MOST_DOTS}` : null;
    const line = budget === null ? counted(calls.length, "call") : `${calls.length} of ${counted(budget, "call")}`;
    const meter = { role: "meter", "aria-label": "Budget spent", "aria-valuemin": 0, "aria-valuenow": calls.length };
    const most = budget === null ? calls.length : budget;
    this.meter.replaceChildren(
      el("span", { class: "dots", ...meter, "aria-valuemax": Math.max(most, 1), "aria-valuetext": line }, dots, rings, more),
      el("span", { class: "spent", "aria-hidden": "true" }, line),
    );
  }

  showFacts(trajectory) {
    const parts = [
      counted(trajectory.num_visible ?? 0, "token"),
      counted(trajectory.num_latents ?? 0, "latent"),
      ENDS[trajectory.finish_reason] ?? trajectory.finish_reason,
      trajectory.seconds ? `${trajectory.seconds.toFixed(2)} s` : null,
    ];
    this.facts.replaceChildren(parts.filter(Boolean).join(" · "));
  }

  /** Mark the token or block under the ribbon's cursor. */
  point(place) {
    this.text.querySelector(".pointed")?.classList.remove("pointed");
    if (place !== null) this.spans[this.answer.steps.indexOf(this.ribbon.steps[place])]?.classList.add("pointed");
  }

  busy(is) {
    this.text.setAttribute("aria-busy", String(is));
    this.node.classList.toggle("busy", is);
  }

  say(message) {
    this.status.replaceChildren(message);
  }

  /** What went wrong, in words, with something to do about it. */
  fail(message, ...buttons) {
    this.error.hidden = false;
    this.error.replaceChildren(el("p", {}, message), el("div", { class: "buttons" }, buttons));
  }

  setButtons(...buttons) {
    this.bar.replaceChildren(...buttons.filter(Boolean));
  }
}

/** What the ribbon has a bar for: the steps, or the actions of an answer whose tokens are not known one by one. */
export function decisions({ steps, trajectory }) {
  if (steps.some((step) => step.probs?.length)) return steps;
  const calls = new Map((trajectory?.invocations ?? []).map((call) => [call.action, call]));
  return (trajectory?.operator_probs ?? []).map((probs, action) => ({ probs, text: "…", call: calls.get(action) }));
}

/** A trajectory's text in pieces, with its invocations between them. Offsets count characters, not UTF-16 units. */
export function stepsOf({ text, invocations }) {
  const characters = [...text];
  const steps = [];
  let shown = 0;
  for (const one of invocations) {
    steps.push({ text: characters.slice(shown, one.offset).join("") });
    steps.push({ call: { ...one, latents: one.latents ?? one.num_latents } });
    shown = one.offset;
  }
  steps.push({ text: characters.slice(shown).join("") });
  return steps.filter((step) => step.call || step.text);
}

/** Show the answer that an exported file holds. */
export function showStandalone() {
  const answer = JSON.parse(document.getElementById("data").textContent);
  document.title = answer.question?.slice(0, 80) || document.title;
  setOperators(answer.operators ?? []);
  const view = new AnswerView(answer);
  const made = answer.model ? `Answered by ${answer.model} with Tyler ${answer.version}` : null;
  const question = answer.question && el("h1", { class: "question" }, prose(answer.question));
  const before = (answer.turns ?? []).map((turn) => el("p", { class: `turn ${turn.role}` }, prose(turn.content)));
  document.getElementById("answer").append(...[...before, question, view.node, made && el("footer", {}, made)].filter(Boolean));
}
