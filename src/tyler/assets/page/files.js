// Files that are opened: a trajectory, answers of `tyler solve`, or rows of an evaluation's answers.

import { stepsOf } from "./answer.js";

/** What a file holds: [{title, outcome, answer}]. Raises Error with a sentence for anything else. */
export function read(name, text) {
  const entries = values(name, text).flatMap((one) => (Array.isArray(one) ? one : [one])).map(entry);
  const found = entries.filter(Boolean);
  if (!found.length) {
    throw new Error(`${name} holds no answers. Open what Trajectory.to_json, tyler solve --json or tyler eval (answers.jsonl) wrote.`);
  }
  return found;
}

function values(name, text) {
  try {
    return [JSON.parse(text)];
  } catch {
    return text.split("\n").filter((line) => line.trim()).map((line, index) => {
      try {
        return JSON.parse(line);
      } catch {
        throw new Error(`${name}, line ${index + 1}, is not JSON.`);
      }
    });
  }
}

function entry(one, index) {
  if (one === null || typeof one !== "object" || !Array.isArray(one.invocations)) return null;
  if ("visible_tokens" in one) return record(one);
  if (typeof one.text !== "string") return null;
  const question = one.problem ?? one.question ?? one.messages?.at?.(-1)?.content ?? null;
  const title = String(one.id ?? question ?? `Answer ${index + 1}`);
  const trajectory = Array.isArray(one.actions) ? one : { ...one, operator_probs: [] };
  return { title, outcome: one.finish_reason, answer: answer(title, question, trajectory) };
}

function record(one) {
  const trajectory = {
    text: one.text ?? "", invocations: one.invocations, num_visible: one.visible_tokens, num_latents: one.latents,
    finish_reason: one.finish_reason, seconds: one.seconds, budget: null, operator_probs: [],
  };
  const note = `${one.outcome ?? "not graded"}: answer ${one.answer ?? "none"}, gold ${one.gold}`;
  return { title: `${one.task} ${one.id}`, outcome: one.outcome ?? one.finish_reason, answer: { ...answer(`${one.task} ${one.id}`, one.prompt, trajectory), note } };
}

function answer(title, question, trajectory) {
  return { title, question, note: null, settings: null, steps: stepsOf(trajectory), trajectory, lens: {} };
}
