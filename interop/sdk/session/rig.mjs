// What the steps of the session share: clients of three tenants and one straight at the
// engine, the witness, and the runner, which prints a line for each step.
import assert from "node:assert/strict";
import OpenAI from "openai";

const env = (name) => {
  const value = process.env[name];
  assert.ok(value !== undefined, `set ${name}`);
  return value;
};

export const model = "small";
export const window = Number(env("WINDOW"));
const can = new Set(env("ENGINE_CAN").split(" ").filter(Boolean));
const baseURL = env("BASE_URL");
const engineURL = env("ENGINE_URL");
const engineModel = env("ENGINE_MODEL");
const witnessURL = env("WITNESS_URL");
const keys = env("KEYS").split(" ");

/** A client of the gateway. Its property sent counts the HTTP requests that it made. */
export function client(options = {}) {
  const made = new OpenAI({
    baseURL, apiKey: keys[0], maxRetries: 0, timeout: 120_000,
    fetch: (...args) => { made.sent++; return fetch(...args); },
    ...options,
  });
  made.sent = 0;
  return made;
}

export const alice = client();
export const bob = client({ apiKey: keys[1] });
/** May have one request in progress. */
export const carol = (options) => client({ apiKey: keys[2], ...options });
/** Straight at the engine, past the gateway and the witness. */
export const engine = new OpenAI({ baseURL: `${engineURL}/v1`, apiKey: "none", maxRetries: 0, timeout: 120_000 });

/** Whether the engine keeps cached prompts, slots and the like. */
export const has = (ability) => can.has(ability);

/** The same parameters as the engine wants them: its own name, and nothing cached. */
export const plain = (params) => ({ ...params, model: engineModel, ...(has("cache") && { cache_prompt: false }) });

export const user = (content) => ({ role: "user", content });
export const question = [user("Count from one to five, then say why the sea is salt.")];

async function witness(path, method = "GET") {
  const answer = await fetch(`${witnessURL}/witness/${path}`, { method });
  assert.ok(answer.ok, `witness: ${answer.status}`);
  return answer;
}

/** The completions that the engine was asked for since forget. */
export const calls = async () => (await witness("calls")).json();
export const forget = () => witness("calls", "DELETE");
/** Lets the next completions fail in the engine's place: busy with 503, reset by a cut connection. */
export const fail = (way, times) => witness(`fail?way=${way}&times=${times}`, "PUT");

/** The only completion that the engine was asked for while run ran. */
export async function onlyCall(run) {
  await forget();
  const answer = await run();
  const seen = await calls();
  assert.equal(seen.length, 1, `the engine was asked ${seen.length} times`);
  return { answer, body: seen[0].body, call: seen[0] };
}

/** What the engine's own list says of its slots: how many are at work. */
export async function busySlots() {
  const slots = await (await fetch(`${engineURL}/slots`)).json();
  assert.ok(slots.length > 0, "the engine lists no slots");
  return slots.filter((s) => s.is_processing).length;
}

/** Waits until look returns something that is true, and returns it; fails after limit ms. */
export async function until(what, look, limit = 30_000) {
  for (const end = Date.now() + limit; ;) {
    const seen = await look();
    if (seen) return seen;
    assert.ok(Date.now() < end, `${what}: not within ${limit} ms`);
    await new Promise((later) => setTimeout(later, 20));
  }
}

/** Fails if the call does not throw the error; returns the error. */
export async function refused(kind, call) {
  let answer;
  try {
    answer = await call();
  } catch (error) {
    assert.ok(error instanceof kind, `threw ${error.constructor.name}: ${error.message}`);
    return error;
  }
  assert.fail(`the call succeeded: ${JSON.stringify(answer)?.slice(0, 300)}`);
}

/** All chunks of a stream. */
export async function collect(stream) {
  const chunks = [];
  for await (const chunk of await stream) chunks.push(chunk);
  return chunks;
}

/** An answer or a chunk must not tell what the engine says of itself and its cache. */
export function checkSilent(answer) {
  assert.equal(answer.timings, undefined, "timings were passed on");
  assert.equal(answer.usage?.prompt_tokens_details?.cached_tokens ?? 0, 0, "cached tokens were told");
  assert.equal(answer.model, model, "the answer names another model");
}

export function checkUsage(usage) {
  assert.ok(usage.prompt_tokens > 0 && usage.completion_tokens > 0, JSON.stringify(usage));
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
}

const steps = [];
/** Adds a step. needs are abilities of the engine, without which it is left out. */
export function step(name, needs, run) {
  steps.push({ name, needs: needs.split(" ").filter(Boolean), run });
}

/** Runs all steps, each though another has failed, and sets the exit code. */
export async function runAll() {
  const count = { ok: 0, failed: 0, left: 0 };
  for (const { name, needs, run } of steps) {
    const lacks = needs.filter((n) => !has(n));
    if (lacks.length > 0) {
      count.left++;
      console.log(`--      ${name} (the engine lacks: ${lacks.join(", ")})`);
      continue;
    }
    const began = performance.now();
    const took = () => `${((performance.now() - began) / 1000).toFixed(1)} s`;
    try {
      const note = await run();
      count.ok++;
      console.log(`ok      ${name}, ${took()}${typeof note === "string" ? `: ${note}` : ""}`);
    } catch (error) {
      count.failed++;
      console.log(`FAILED  ${name}, ${took()}: ${error.stack}`);
    }
  }
  console.log(`${count.ok} passed, ${count.failed} failed, ${count.left} left out`);
  if (count.failed > 0 || count.ok === 0) process.exitCode = 1;
}
