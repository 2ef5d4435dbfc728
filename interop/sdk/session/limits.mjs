// Errors, limits, leaving, retries, and what one tenant learns of another.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { alice, bob, busySlots, calls, carol, checkSilent, client, collect, engine, fail, forget, has, model, plain, question, refused, step, until, user, window } from "./rig.mjs";

const small = { model, messages: question, max_tokens: 4, temperature: 0 };
const secret = "my-code-is-heron-4711";

/** A call that the gateway refuses by itself: the engine is not asked, and the error says what it must and no more. */
async function refusedHere(kind, want, call, by = client({ maxRetries: 2 })) {
  await forget();
  const error = await refused(kind, () => call(by));
  for (const [name, value] of Object.entries(want)) assert.equal(error[name], value, name);
  assert.match(error.headers.get("x-bulkhead-request-id"), /^req-/);
  assert.equal(error.error.id, error.headers.get("x-bulkhead-request-id"));
  assert.ok(!JSON.stringify(error.error).includes(secret), "the error repeats the prompt");
  assert.equal(by.sent, 1, `the SDK sent ${by.sent} requests for what no retry can mend`);
  assert.deepEqual(await calls(), [], "the engine was asked");
  return error;
}

step("401 without a key that is known", "", () =>
  refusedHere(OpenAI.AuthenticationError, { status: 401, code: "invalid_api_key", type: "authentication_error" },
    (c) => c.chat.completions.create(small), client({ apiKey: "bk-00000000000000000000000000000000", maxRetries: 2 })));

step("404 for a model that is not there", "", () =>
  refusedHere(OpenAI.NotFoundError, { status: 404, code: "model_not_found", param: "model" },
    (c) => c.chat.completions.create({ ...small, model: "gpt-none" })));

step("404 for what is not served", "", async () => {
  for (const call of [(c) => c.embeddings.create({ model, input: secret }), (c) => c.responses.create({ model, input: secret })]) {
    await refusedHere(OpenAI.NotFoundError, { status: 404, code: "path_not_served" }, call);
  }
});

step("400 for a field that is not known, that is reserved, out of range, of another type, or missing", "", async () => {
  const messages = [user(secret)];
  for (const [more, code, param] of [
    [{ no_such_field: secret }, "unknown_field", "no_such_field"],
    [{ id_slot: 0 }, "reserved_field", "id_slot"],
    [{ temperature: 9 }, "value_out_of_range", "temperature"],
    [{ messages: secret }, "wrong_type", "messages"],
    [{ messages: undefined }, "missing_field", "messages"],
    [{ messages: [{ role: "user", content: secret, no_such_part: 1 }] }, "unknown_field", "messages[0].no_such_part"],
  ]) {
    await refusedHere(OpenAI.BadRequestError, { status: 400, code, param, type: "invalid_request_error" },
      (c) => c.chat.completions.create({ ...small, messages, ...more }));
  }
});

for (const stream of [false, true]) {
  step(`400 for a prompt that is too long${stream ? ", streamed" : ""}`, "", async () => {
    const messages = [user(`${secret} ${"word ".repeat(2 * window)}`)];
    const error = await refusedHere(OpenAI.BadRequestError, { status: 400, code: "context_length_exceeded", type: "invalid_request_error" },
      (c) => c.chat.completions.create({ ...small, messages, stream }));
    assert.match(error.message, new RegExp(`maximum context length is ${window} tokens`));
  });
}

step("400 for more output than there is room for", "", () =>
  refusedHere(OpenAI.BadRequestError, { status: 400, code: "output_exceeds_window" }, (c) => c.chat.completions.create({ ...small, max_tokens: window })));

// Long enough that nobody waits for its end.
const long = { model, messages: question, max_tokens: 1000, temperature: 0, ...(has("model") && { ignore_eos: true }) };

/** Begins a long stream, and takes three chunks of it. */
async function begin(by) {
  const controller = new AbortController();
  const stream = await by.chat.completions.create({ ...long, stream: true }, { signal: controller.signal });
  const parts = stream[Symbol.asyncIterator]();
  for (let i = 0; i < 3; i++) assert.equal((await parts.next()).done, false, "the stream ended by itself");
  return { controller, parts };
}

/** The engine has seen that the gateway left, and works on nothing. */
async function freed(limit) {
  const [call] = await until("the call at the engine has ended", async () => {
    const seen = await calls();
    return seen.length > 0 && seen.every((c) => !c.open) && seen;
  });
  assert.equal(call.left, true, "the engine ended the call, and not the gateway");
  if (has("slots")) await until("all slots are free", async () => (await busySlots()) === 0, limit);
}

step("cancel in mid-stream frees the engine", "", async () => {
  await forget();
  const { controller, parts } = await begin(alice);
  assert.equal((await calls())[0].open, true);
  if (has("slots")) assert.equal(await busySlots(), 1);
  const began = performance.now();
  controller.abort();
  while (!(await parts.next()).done);
  await freed();
  const took = performance.now() - began;
  assert.equal((await alice.chat.completions.create(small)).choices.length, 1);
  return `${took.toFixed(0)} ms after`;
});

step("leaving the loop frees the engine", "", async () => {
  await forget();
  for await (const chunk of await alice.chat.completions.create({ ...long, stream: true })) {
    assert.ok(chunk.id);
    break;
  }
  await freed();
});

step("cancel of a whole answer: the gateway leaves at once, and the engine in its own time", "model", async () => {
  await forget();
  const controller = new AbortController();
  await Promise.all([
    refused(OpenAI.APIUserAbortError, () => alice.chat.completions.create({ ...long, max_tokens: 300 }, { signal: controller.signal })),
    until("the engine is at work", async () => (await busySlots()) === 1).finally(() => controller.abort()),
  ]);
  const began = performance.now();
  // llama.cpp does not always notice who leaves a whole answer before it is written.
  await freed(120_000);
  return `free ${((performance.now() - began) / 1000).toFixed(1)} s after`;
});

step("429 while as many requests as allowed are in progress; the SDK's retry gets through", "", async () => {
  await forget();
  const first = await begin(carol());
  const second = carol();
  const error = await refused(OpenAI.RateLimitError, () => second.chat.completions.create(small));
  assert.equal(error.status, 429);
  assert.equal(error.code, "too_many_requests");
  assert.equal(error.headers.get("retry-after"), "1");
  assert.equal((await calls()).length, 1, "the engine was asked for what was refused");
  const other = await bob.chat.completions.create(small);
  assert.equal(other.choices.length, 1, "another tenant is not concerned");
  const patient = carol({ maxRetries: 5 });
  const [answer] = await Promise.all([
    patient.chat.completions.create(small),
    until("it was refused and asks again", () => patient.sent >= 2).finally(() => first.controller.abort()),
  ]);
  assert.equal(answer.choices.length, 1);
  return `${patient.sent} requests`;
});

for (const way of ["busy", "reset"]) {
  step(`an engine that ${way === "busy" ? "is busy" : "goes away"} once: the SDK's own retry gets through`, "", async () => {
    await forget();
    await fail(way, 1);
    const by = client({ maxRetries: 2 });
    assert.equal((await by.chat.completions.create(small)).choices.length, 1);
    const asked = (await calls()).length;
    assert.ok(asked === 2 && by.sent >= 2 && by.sent <= 3, `the SDK sent ${by.sent} requests, and the engine was asked ${asked} times`);
  });

  step(`an engine that always ${way === "busy" ? "is busy" : "goes away"}: the SDK's retries are not multiplied`, "", async () => {
    await forget();
    await fail(way, 1000);
    const by = client({ maxRetries: 2 });
    let error;
    try {
      error = await refused(OpenAI.InternalServerError, () => by.chat.completions.create(small));
    } finally {
      await fail(way, 0);
    }
    const asked = (await calls()).length;
    assert.equal(by.sent, 3, "the SDK tries three times");
    assert.ok(asked > 0 && asked <= by.sent + 1, `the SDK sent ${by.sent} requests, and the engine was asked ${asked} times`);
    await serves();
    return `${by.sent} requests, ${asked} calls, then ${error.status} ${error.code}`;
  });
}

/** Waits until the gateway takes requests for the model again. */
async function serves() {
  await until("the model serves again", async () => {
    try {
      return await alice.chat.completions.create(small);
    } catch (e) {
      assert.ok(e instanceof OpenAI.InternalServerError, e.message);
      return undefined;
    }
  }, 60_000);
}

const story = `The keeper of the lamp wrote this down. ${"The ship came at noon and left at dusk, and nobody saw who was aboard. ".repeat(4)}`;

step("two tenants with the same prompt: neither is told of cached tokens", "", async () => {
  const params = { ...small, messages: [user(story)] };
  const told = [];
  for (const by of [alice, bob, alice]) {
    const answer = await by.chat.completions.create(params);
    checkSilent(answer);
    told.push(answer.usage);
    for (const chunk of await collect(by.chat.completions.create({ ...params, stream: true, stream_options: { include_usage: true } }))) checkSilent(chunk);
  }
  for (const usage of told) assert.deepEqual(usage, told[0], "the usage of one differs from the other's");
});

step("the same straight at the engine shows them", "cache", async () => {
  const { cache_prompt: _, ...params } = plain({ ...small, messages: [user(`${story} So it was.`)] });
  await engine.chat.completions.create(params);
  const again = await engine.chat.completions.create(params);
  assert.ok(again.usage.prompt_tokens_details.cached_tokens > 50, JSON.stringify(again.usage));
  assert.ok(again.timings !== undefined);
});

step("no prompt is left in the engine's cache for others", "cache", async () => {
  await forget();
  for (const by of [alice, bob]) await by.chat.completions.create({ ...small, messages: [user(story)] });
  for (const c of await calls()) {
    assert.equal(c.body.cache_prompt, false);
    assert.equal(c.body.id_slot, undefined);
  }
});
