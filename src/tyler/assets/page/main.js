// The page: a question, its answers, and files that were saved.

import { AnswerView } from "./answer.js";
import { Trouble, file, json, setKey, stream } from "./api.js";
import { counted, el } from "./dom.js";
import { read } from "./files.js";
import { prose } from "./math.js";
import { operators, setOperators, sign } from "./operators.js";
import { Settings, summary } from "./settings.js";

const $ = (id) => document.getElementById(id);
const AT_ONCE = 100; // entries of a file that are listed at a time
const running = new Set(); // an AbortController for each answer that is being decoded
let model = null;
let forms = [];
let turns = []; // the conversation that the first answer on the page ends

function announce(message) {
  $("announcer").replaceChildren(message);
}

function complain(message) {
  $("problem").hidden = !message;
  $("problem").replaceChildren(message ?? "");
}

// -- the model and its key --------------------------------------------------------------------------------------

async function start() {
  try {
    model = await json("/api/model");
  } catch (error) {
    if (error.status === 401) return askForKey(start);
    complain(error.message);
    $("problem").append(" ", el("button", { type: "button", onclick: () => { complain(null); start(); } }, "Try again"));
    return;
  }
  document.title = `${model.name}, Tyler`;
  $("model").replaceChildren(el("b", {}, model.name), ` ${model.method === model.name ? "" : model.method}`);
  setOperators(model.operators);
  forms = ["A", "B"].map((name) => new Settings(name, model));
  $("forms").replaceChildren(...forms.map((form) => form.node));
  $("forms").addEventListener("input", showSummary);
  $("ask").disabled = false;
  showCompare();
  showExamples();
}

/** Ask until the server takes the key, then go on. */
function askForKey(then, problem = null) {
  const dialog = $("key-dialog");
  $("key-problem").hidden = !problem;
  $("key-problem").replaceChildren(problem ?? "");
  dialog.addEventListener("close", async () => {
    if (!$("key").value) return complain("Without a key this server answers nothing. Reload the page to give one.");
    if (/[^ -~]/.test($("key").value)) return askForKey(then, "That key is not the right one."); // no header holds it
    setKey($("key").value.trim());
    $("key").value = "";
    const refused = await json("/api/model").then(() => false, (error) => error.status === 401);
    if (refused) askForKey(then, "That key is not the right one.");
    else then();
  }, { once: true });
  dialog.showModal();
}

function showExamples() {
  $("examples").hidden = !$("answers").hidden || !$("opened").hidden;
  const legend = model.operators.flatMap((one) => [sign(one.name), el("b", {}, one.name), ` ×${one.latents} `]);
  $("legend").hidden = !legend.length;
  $("legend").replaceChildren("Between visible tokens this model may think in latents. Its operators: ", ...legend);
  $("examples").querySelector("ul").replaceChildren(...model.examples.map((question) =>
    el("li", {}, el("button", { type: "button", onclick: () => { $("question").value = question; ask(); } }, prose(question)))));
}

function showCompare() {
  const both = $("compare").checked;
  forms[1].node.hidden = !both;
  forms[0].legend.hidden = !both;
  if (both) $("settings").open = true;
  showSummary();
}

function showSummary() {
  const shown = forms.slice(0, $("compare").checked ? 2 : 1);
  try {
    $("summary").replaceChildren(shown.map((form) => summary(form.values())).join(" | "));
  } catch {
    $("summary").replaceChildren("one of them is out of its range");
  }
}

// -- asking ------------------------------------------------------------------------------------------------------

async function ask() {
  const question = $("question").value.trim();
  if (!model || !question) return;
  complain(null);
  let settings;
  try {
    settings = forms.slice(0, $("compare").checked ? 2 : 1).map((form) => form.values());
  } catch (error) {
    $("settings").open = true;
    return complain(error.message);
  }
  stop();
  const before = $("follow").checked && !$("follow-up").hidden ? turns : [];
  showQuestion(question, before);
  const seed = settings.map((one) => one.seed).find((one) => one !== undefined) ?? Math.floor(Math.random() * 2 ** 32);
  const views = settings.map((values, index) => {
    const title = settings.length > 1 ? `${"AB"[index]}: ${summary(values)}` : "Answer";
    return pane({ title, question, turns: before, note: settings.length > 1 ? null : summary(values), values: { ...values, seed: values.seed ?? seed } });
  });
  const messages = [...before, { role: "user", content: question }];
  await Promise.all(views.map((view) => decode(view, { ...view.answer.values, messages })));
  if (!views[0].node.isConnected) return; // something else is shown by now
  const answered = views[0].answer.trajectory?.text;
  turns = answered ? [...messages, { role: "assistant", content: answered }] : [];
  $("follow-up").hidden = !turns.length;
  if (answered) $("question").value = "";
  if (views.length > 1) showFork(views[1], views[0]);
}

function showQuestion(question, before = []) {
  $("follow-up").hidden = true;
  $("turns").replaceChildren(...before.map((turn) => el("p", { class: `turn ${turn.role}` }, prose(turn.content))));
  $("examples").hidden = true;
  $("answers").hidden = false;
  $("asked").replaceChildren(...prose(question ?? ""));
  $("panes").replaceChildren();
}

function pane({ title, question = null, turns = [], note = null, values = null }) {
  const answer = { title, question, turns, note, values, settings: { budget: values?.tyler?.budget ?? model.budget }, steps: [], trajectory: null, lens: {} };
  return place(new AnswerView(answer, { replay, lens }));
}

function place(view, after = null) {
  if (after) after.node.after(view.node);
  else $("panes").append(view.node);
  return view;
}

/** Let the server answer into a view, with its troubles shown there. */
async function decode(view, body) {
  const control = new AbortController();
  running.add(control);
  view.error.hidden = true;
  view.busy(true);
  view.say("Answering…");
  view.setButtons(el("button", { type: "button", onclick: () => control.abort() }, "Stop"));
  showStop();
  announce("Answering");
  try {
    await stream("/api/answers", { model: model.name, ...body }, (name, data) => hear(view, name, data), control.signal);
    announce(`${view.answer.title}: ${view.facts.textContent}`);
    view.say("");
  } catch (error) {
    troubled(view, error, body);
  } finally {
    running.delete(control);
    view.busy(false);
    view.setButtons(...savers(view));
    showStop();
  }
}

function hear(view, name, data) {
  if (name === "start") {
    Object.assign(view.answer.settings, data);
    view.showBudget();
  } else if (name === "steps") view.add(data.steps);
  else if (name === "end") view.finish(data.trajectory);
}

function troubled(view, error, body) {
  view.say("");
  if (error.name === "AbortError") {
    view.say("Stopped here.");
    return announce("Stopped");
  }
  const again = () => {
    view.answer.steps = [];
    view.rebuild();
    decode(view, body);
  };
  if (error.status === 401) return askForKey(again);
  if (!(error instanceof Trouble)) console.error(error);
  view.fail(error.message, el("button", { type: "button", onclick: again }, "Try again"));
}

function stop() {
  running.forEach((control) => control.abort());
}

function showStop() {
  $("stop").hidden = !running.size;
}

/** Mark where an answer begins to differ from another one. */
function showFork(view, other) {
  const [mine, its] = [view, other].map((one) => one.answer.steps.map((step) => step.call?.operator ?? step.text));
  const place = mine.findIndex((step, index) => step !== its[index]);
  if (place < 0 && mine.length === its.length) return view.say("The same answer, step by step.");
  const at = place < 0 ? mine.length : place;
  view.spans[at]?.classList.add("fork");
  view.say(at ? `The same for the first ${counted(at, "step")}; it differs from the mark on.` : "It differs from the first step on.");
}

// -- what can be done with an answer -------------------------------------------------------------------------------

/** The same answer without one of its calls, beside it. */
async function replay(view, index) {
  const { trajectory, settings, values } = view.answer;
  const call = trajectory.invocations[index];
  const { temperature, top_p, top_k, seed } = trajectory.sampling;
  const budget = trajectory.budget === null ? {} : { budget: trajectory.budget };
  const router = settings?.router ?? (trajectory.offered.some(Boolean) ? "learned" : "boundaries");
  const most = values?.max_new_tokens ?? model.max_new_tokens;
  const sampled = { temperature, top_p, top_k, seed, max_new_tokens: Math.max(most, call.action + 1), tyler: { router, ...budget } };
  const branch = new AnswerView({
    title: `Without ${call.operator} at ${call.position}`, question: view.answer.question, note: "The same answer up to that call, then the model's own.",
    values: sampled, settings: { budget: trajectory.budget }, steps: [], trajectory: null, lens: {},
  }, { replay, lens });
  place(branch, view);
  branch.node.scrollIntoView({ block: "nearest" });
  const origin = { prompt_ids: trajectory.prompt_ids, actions: trajectory.actions.slice(0, call.action) };
  await decode(branch, { ...sampled, branch: origin });
  if (branch.answer.trajectory) showFork(branch, view);
}

/** What one block does, in its card. */
async function lens(view, index, place) {
  const { prompt_ids, actions } = view.answer.trajectory;
  place.replaceChildren(el("p", { class: "note" }, "Looking…"));
  try {
    const reading = await json("/api/lens", { model: model.name, answer: { prompt_ids, actions }, invocation: index });
    view.answer.lens[index] = reading;
    const { button } = view.open ?? {};
    if (view.open?.index !== index) return;
    view.toggle(index, button);
    view.toggle(index, button);
    announce("The lens is shown.");
  } catch (error) {
    place.replaceChildren(el("p", { class: "error", role: "alert" }, error.message));
  }
}

function savers(view) {
  const { answer } = view;
  const html = async () => {
    try {
      const kept = { ...answer, operators: operators(), model: answer.values && model.name, version: model?.version };
      const data = JSON.stringify(kept).replaceAll("<", "\\u003c"); // no text ends the element that holds it
      const page = (await file("/page/answer.html")).replace("$data", () => data);
      save(new Blob([page], { type: "text/html" }), "answer.html");
    } catch (error) {
      view.fail(error.message);
    }
  };
  const data = () => save(new Blob([JSON.stringify(answer.trajectory)], { type: "application/json" }), "answer.json");
  return [
    answer.steps.length > 0 && el("button", { type: "button", class: "quiet", onclick: html }, "Save as HTML"),
    answer.trajectory?.actions && el("button", { type: "button", class: "quiet", onclick: data }, "Save as JSON"),
  ];
}

function save(content, name) {
  const link = el("a", { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// -- files ---------------------------------------------------------------------------------------------------------

async function open(file) {
  complain(null);
  try {
    const entries = read(file.name, await file.text());
    if (entries.length === 1) showEntry(entries[0]);
    else showList(file.name, entries);
  } catch (error) {
    complain(error.message);
  }
}

function showEntry({ answer }) {
  showQuestion(answer.question);
  const full = Array.isArray(answer.trajectory.actions) && model?.operators.length;
  const view = place(new AnswerView(structuredClone(answer), full ? { replay, lens } : {}));
  view.setButtons(...savers(view));
  $("asked").focus();
}

function showList(name, entries) {
  $("examples").hidden = true;
  $("answers").hidden = true;
  $("opened").hidden = false;
  $("opened-title").replaceChildren(`${name}: ${counted(entries.length, "answer")}`);
  const outcomes = [...new Set(entries.map((one) => one.outcome))].sort();
  $("outcome").replaceChildren(...["all", ...outcomes].map((one) => el("option", { value: one }, one)));
  $("outcome").onchange = () => list(entries);
  list(entries);
  $("opened-title").focus();
}

function list(entries, count = AT_ONCE) {
  const wanted = $("outcome").value;
  const found = entries.filter((one) => wanted === "all" || one.outcome === wanted);
  $("entries").replaceChildren(...found.slice(0, count).map((one) =>
    el("li", {}, el("button", { type: "button", onclick: () => showEntry(one) },
      el("span", { class: "name" }, one.title), el("span", { class: "outcome" }, one.outcome),
      el("span", { class: "hint" }, counted(one.answer.trajectory.invocations.length, "call"))))));
  $("more").hidden = found.length <= count;
  $("more").onclick = () => list(entries, count + AT_ONCE);
}

// -- wiring --------------------------------------------------------------------------------------------------------

const THEMES = { auto: ["◐", "as the system"], light: ["○", "light"], dark: ["●", "dark"] };

function showTheme(name) {
  const [sign, words] = THEMES[name] ?? THEMES.auto;
  document.documentElement.dataset.theme = name;
  $("theme").replaceChildren(sign);
  $("theme").setAttribute("aria-label", `Theme: ${words}`);
  localStorage.setItem("tyler-theme", name);
}

showTheme(localStorage.getItem("tyler-theme") ?? "auto");
$("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  showTheme(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
});
$("composer").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
$("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
});
document.addEventListener("keydown", (event) => event.key === "Escape" && running.size && stop());
$("stop").addEventListener("click", stop);
$("compare").addEventListener("change", showCompare);
$("file").addEventListener("change", (event) => { const [file] = event.target.files; event.target.value = ""; if (file) open(file); });
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => { event.preventDefault(); const [file] = event.dataTransfer.files; if (file) open(file); });
start();
