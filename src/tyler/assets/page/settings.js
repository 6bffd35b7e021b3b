// How a question is asked: one form for each of the answers that stand side by side.

import { el } from "./dom.js";

/** The slider's step beyond 10 calls: what the server allows where it is not told, no limit or more than 10. */
const BEYOND = 11;
const ROUTERS = { learned: "the policy", boundaries: "every boundary", "boundaries:0.25": "1 boundary in 4", never: "no operators" };

export class Settings {
  /** `name` tells two forms apart; `model` is what the server said of itself. */
  constructor(name, model) {
    this.model = model;
    this.fields = {};
    const routed = model.operators.length > 0;
    const rows = [
      routed && this.budget(name),
      routed && this.router(name),
      this.number(name, "temperature", "Temperature", { min: 0, max: 5, step: 0.1, value: 0 }, "0 is greedy"),
      this.number(name, "top_p", "Top p", { min: 0.05, max: 1, step: 0.05, value: 1 }),
      this.number(name, "seed", "Seed", { min: 0, step: 1, placeholder: "random" }, "for sampling"),
      this.number(name, "max_new_tokens", "Tokens", { min: 1, max: model.max_new_tokens, step: 1, value: Math.min(512, model.max_new_tokens) }, "at most"),
    ];
    this.legend = el("legend", {}, name);
    this.node = el("fieldset", { class: "settings" }, this.legend, rows.filter(Boolean));
  }

  budget(name) {
    const usual = this.model.budget ?? Infinity;
    const most = usual < BEYOND ? BEYOND - 1 : BEYOND;
    const shown = el("output", {});
    const range = el("input", { type: "range", id: `${name}-budget`, min: 0, max: most, step: 1, value: name === "B" ? 0 : Math.min(usual, most) }); // the second answer begins without operators
    const tell = () => {
      const chosen = Number(range.value) === BEYOND ? usual : Number(range.value);
      const text = chosen === Infinity ? "no limit" : String(chosen);
      shown.replaceChildren(text);
      range.setAttribute("aria-valuetext", chosen === Infinity ? text : `${text} calls`);
    };
    range.addEventListener("input", tell);
    tell();
    this.fields.budget = range;
    return this.row(range, "Budget", shown, "wide");
  }

  router(name) {
    const options = { ...ROUTERS };
    if (!(this.model.router in options)) options[this.model.router] = this.model.router;
    const select = el("select", { id: `${name}-router` }, Object.entries(options).map(([value, text]) =>
      el("option", { value, selected: value === this.model.router }, text)));
    this.fields.router = select;
    return this.row(select, "Operators by");
  }

  number(name, key, label, attributes, hint = null) {
    const input = el("input", { type: "number", id: `${name}-${key}`, inputmode: "decimal", ...attributes });
    this.fields[key] = input;
    return this.row(input, label, hint && el("span", { class: "hint" }, hint));
  }

  row(input, label, more = null, kind = "") {
    return el("div", { class: `field ${kind}` }, el("label", { for: input.id }, label, " ", more), input);
  }

  /** What the server is sent. Raises Error with a sentence for a number that is out of its range. */
  values() {
    for (const input of Object.values(this.fields)) {
      if (!input.checkValidity()) {
        input.focus();
        throw new Error(`${input.labels[0].textContent.trim()}: ${input.validationMessage}`);
      }
    }
    const number = (key) => (this.fields[key].value === "" ? undefined : Number(this.fields[key].value));
    const found = { temperature: number("temperature") ?? 0, top_p: number("top_p"), seed: number("seed"), max_new_tokens: number("max_new_tokens") };
    if (!this.fields.router) return found;
    const chosen = Number(this.fields.budget.value);
    const budget = chosen === BEYOND ? this.model.budget : chosen;
    return { ...found, tyler: { router: this.fields.router.value, ...(budget === null ? {} : { budget }) } };
  }
}

/** Settings in a few words. */
export function summary(values) {
  const { tyler = {}, temperature = 0 } = values;
  const parts = [
    tyler.router && (ROUTERS[tyler.router] ?? tyler.router),
    tyler.router && tyler.router !== "never" ? (tyler.budget === undefined ? "no limit" : `budget ${tyler.budget}`) : null,
    temperature ? `temperature ${temperature}` : "greedy",
  ];
  return parts.filter(Boolean).join(", ");
}
