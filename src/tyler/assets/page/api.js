// The server: its key, its errors in words that help, and answers as they come.

import { counted } from "./dom.js";

const KEY = "tyler-key";

/** Something went wrong; `message` is for people, `status` 0 means that no server answered. */
export class Trouble extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

function headers() {
  const key = sessionStorage.getItem(KEY);
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function ask(path, body, signal) {
  const options = { headers: headers(), signal };
  if (body !== undefined) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  let found;
  try {
    found = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server does not answer. It may have been stopped: start tyler serve again, then try once more.", 0);
  }
  if (!found.ok) throw await trouble(found);
  return found;
}

async function trouble(found) {
  const told = await found.json().catch(() => ({}));
  const reason = told.error?.message ?? `the server said ${found.status}`;
  const wait = Number(found.headers.get("retry-after")) || null;
  const messages = {
    401: "This server asks for a key.",
    413: "That is too long for this server. Send less.",
    429: `Many questions are being answered just now. Try again in ${wait ? counted(wait, "second") : "a moment"}.`,
    503: "The server is shutting down or starting again. Try again in a moment.",
  };
  return new Trouble(messages[found.status] ?? `${reason[0].toUpperCase()}${reason.slice(1)}.`, found.status);
}

/** JSON from one of the endpoints; a POST where there is a body. */
export async function json(path, body, signal) {
  return (await ask(path, body, signal)).json();
}

/** One of the page's files. */
export async function file(path) {
  return (await ask(path)).text();
}

/** Named events of an answer: `heard(name, data)` for each. Raises Trouble where the stream ends before the answer. */
export async function stream(path, body, heard, signal) {
  const found = await ask(path, body, signal);
  let ended = false;
  try {
    for await (const [name, data] of events(found.body)) {
      if (name === "error") throw new Trouble(`The answer was lost: ${data.error.message}.`, 500);
      ended ||= name === "end";
      heard(name, data);
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Trouble) throw error;
  }
  if (!ended) throw new Trouble("The connection to the server was lost before the answer ended.", 0);
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const fields = Object.fromEntries(part.split("\n").map((line) => [line.split(":", 1)[0], line.slice(line.indexOf(":") + 2)]));
      if (fields.data) yield [fields.event, JSON.parse(fields.data)];
    }
  }
}
