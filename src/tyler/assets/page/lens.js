// What the operator lens shows of one block: what can be read from it, and what replacing it changes.

import { el, percent, visible } from "./dom.js";

const MEANINGS = {
  zeros: "zeros",
  means: "the operator's mean block",
  noise: "noise of the same size",
  "other problem": "another problem's block",
  "other operator": "another operator's block",
  untrained: "an untrained operator's block",
  "no block": "no block at all",
};

/** A reading as the server gives it, as an element. */
export function lensView(reading) {
  return el(
    "section",
    { class: "lens", "aria-label": `Lens on ${reading.operator}` },
    el("h4", {}, "What can be read from it"),
    readouts(reading),
    el("h4", {}, "What replacing it changes"),
    el("p", { class: "note" }, meaning(reading)),
    effects(reading),
    el("p", { class: "note" }, `${enough(reading)} ${carried(reading)}`),
  );
}

function readouts(reading) {
  const rows = reading.readouts.map(({ likeliest, nearest, control = [] }, index) =>
    el("tr", {}, el("th", { scope: "row" }, `z${index + 1}`),
      cell(likeliest, percent, 3), cell(control, percent, 2), cell(nearest, (one) => one.toFixed(2), 2)),
  );
  const names = ["latent", "likeliest next token", "with another problem's", "nearest embedding"];
  const head = names.map((name) => el("th", { scope: "col" }, name));
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Readouts" },
    el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
}

function cell(scores, shown, count) {
  const parts = scores.slice(0, count).map(([token, score], index) =>
    el("span", { class: index ? "word faint" : "word" }, el("code", {}, visible(token)), ` ${shown(score)}`),
  );
  return el("td", {}, parts);
}

function effects(reading) {
  const entries = Object.entries(reading.effects);
  const most = Math.max(0.01, ...entries.map(([, effect]) => Math.abs(effect.loss)));
  const rows = entries.map(([name, effect]) =>
    el("tr", {},
      el("th", { scope: "row" }, MEANINGS[name] ?? name),
      el("td", { class: "bar" },
        el("span", { class: effect.loss < 0 ? "less" : "more", vars: { "--share": Math.abs(effect.loss) / most } }),
        el("span", {}, signed(effect.loss))),
      el("td", {}, effect.divergence.toFixed(3)),
      el("td", {}, percent(effect.flipped)),
    ),
  );
  const head = ["replaced by", "log p lost, nats", "KL a token", "flipped"].map((name) => el("th", { scope: "col" }, name));
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Effects" },
    el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
}

/** Two decimals, and no minus before nothing. */
function signed(value) {
  return (Math.abs(value) < 0.005 ? 0 : value).toFixed(2);
}

function meaning(reading) {
  const blocks = reading.controls === 1 ? "1 block" : `${reading.controls} blocks`;
  return `Of the tokens after it, teacher-forced. What noise or another problem's block does too is not due to this block. Means and others come from ${blocks} of other answers${reading.controls ? "" : ", so there are none"}.`;
}

function enough(reading) {
  const { enough: count, num_latents: all } = reading;
  if (count === 0) return "Even without it every token after it stays the likeliest.";
  const first = count === 1 ? `The first of its ${all} latents is` : `The first ${count} of its ${all} latents are`;
  return `${first} enough for every token after it to stay the likeliest.`;
}

/** What blocks of other problems carry into this answer; nothing where it was not measured. */
function carried({ carried: found }) {
  if (!found) return "";
  const { moved, noise, whole, donors } = found;
  const others = donors === 1 ? "another problem's block moves" : `${donors} other problems' blocks move`;
  return `Towards their answers ${others} this one by ${signed(moved)} of ${signed(whole)} nats; noise by ${signed(noise)}.`;
}
