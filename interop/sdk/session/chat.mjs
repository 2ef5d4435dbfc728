// Models, chat and streams, and what shapes an answer.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { alice, checkSilent, checkUsage, collect, engine, has, model, onlyCall, plain, question, refused, step, user } from "./rig.mjs";

const whole = { model, messages: question, max_tokens: 12, temperature: 0 };
const text = (answer, i = 0) => answer.choices[i].message.content;

/** Compares an answer with the engine's own to the same question. */
async function sameAsEngine(params, answer) {
  const own = await engine.chat.completions.create(plain(params));
  assert.ok(text(own).length > 0, "the engine says nothing: the comparison would be void");
  assert.equal(text(answer), text(own));
  assert.equal(answer.choices[0].finish_reason, own.choices[0].finish_reason);
  assert.deepEqual(answer.choices.map((c) => c.index), [0]);
  for (const name of ["prompt_tokens", "completion_tokens", "total_tokens"]) assert.equal(answer.usage[name], own.usage[name], name);
}

step("models.list", "", async () => {
  const found = [];
  for await (const m of alice.models.list()) found.push(m);
  assert.deepEqual(found.map((m) => m.id), [model]);
  for (const m of found) {
    assert.equal(m.object, "model");
    assert.equal(typeof m.created, "number");
    assert.equal(typeof m.owned_by, "string");
  }
});

step("chat", "", async () => {
  const { data: answer, response } = await alice.chat.completions.create(whole).withResponse();
  assert.equal(answer.object, "chat.completion");
  assert.match(answer.id, /^chatcmpl-/);
  assert.match(response.headers.get("x-bulkhead-request-id"), /^req-[0-9a-f]{32}$/);
  assert.equal(answer.choices.length, 1);
  assert.equal(answer.choices[0].message.role, "assistant");
  checkUsage(answer.usage);
  checkSilent(answer);
  await sameAsEngine(whole, answer);
});

for (const role of ["system", "developer"]) {
  step(`chat with the role ${role}`, "", async () => {
    const messages = [{ role, content: "Answer with one word." }, ...question];
    const { answer, body } = await onlyCall(() => alice.chat.completions.create({ ...whole, messages }));
    // Engines that do not know the newer name of the role are told the older.
    assert.ok([role, "system"].includes(body.messages[0].role), body.messages[0].role);
    assert.deepEqual(body.messages, [{ ...messages[0], role: body.messages[0].role }, ...question]);
    await sameAsEngine({ ...whole, messages }, answer);
  });
}

step("chat with parts, a name, and a turn before", "", async () => {
  const messages = [
    { role: "system", content: [{ type: "text", text: "Be short." }] },
    { role: "user", name: "joe", content: [{ type: "text", text: "My number is " }, { type: "text", text: "\u{1F9C2} 7." }] },
    { role: "assistant", content: "I see." }, user("Say it again."),
  ];
  const { answer, body } = await onlyCall(() => alice.chat.completions.create({ ...whole, messages }));
  assert.deepEqual(body.messages, messages);
  await sameAsEngine({ ...whole, messages }, answer);
});

for (const usage of [false, true]) {
  step(`stream ${usage ? "with" : "without"} usage`, "", async () => {
    const answer = await alice.chat.completions.create(whole);
    const chunks = await collect(alice.chat.completions.create({ ...whole, stream: true, ...(usage && { stream_options: { include_usage: true } }) }));
    assert.equal(new Set(chunks.map((c) => c.id)).size, 1, "one id for all chunks");
    assert.match(chunks[0].id, /^chatcmpl-/);
    assert.equal(chunks[0].choices[0].delta.role, "assistant");
    for (const c of chunks) {
      assert.equal(c.object, "chat.completion.chunk");
      checkSilent(c);
    }
    const told = chunks.filter((c) => c.usage);
    assert.equal(told.length, usage ? 1 : 0, "chunks with usage");
    if (usage) {
      assert.equal(told[0], chunks.at(-1));
      assert.deepEqual(told[0].choices, []);
      assert.deepEqual(told[0].usage, answer.usage);
    }
    const choices = chunks.flatMap((c) => c.choices);
    assert.ok(choices.every((c) => c.index === 0));
    const pieces = choices.map((c) => c.delta.content).filter(Boolean);
    assert.ok(pieces.length >= 3, `the text came in ${pieces.length} pieces`);
    assert.equal(pieces.join(""), text(answer));
    assert.deepEqual(choices.map((c) => c.finish_reason).filter(Boolean), [answer.choices[0].finish_reason]);
  });
}

step("the SDK's stream helper", "", async () => {
  const answer = await alice.chat.completions.create(whole);
  const stream = alice.chat.completions.stream({ ...whole, stream_options: { include_usage: true } });
  let heard = "";
  stream.on("content", (delta) => { heard += delta; });
  const final = await stream.finalChatCompletion();
  assert.equal(heard, text(answer));
  assert.equal(text(final), text(answer));
  const total = await stream.totalUsage();
  for (const name of ["prompt_tokens", "completion_tokens", "total_tokens"]) assert.equal(total[name], answer.usage[name], name);
});

step("max_completion_tokens", "", async () => {
  const { max_tokens: _, ...rest } = whole;
  for (const n of [1, 3]) {
    const answer = await alice.chat.completions.create({ ...rest, max_completion_tokens: n });
    assert.equal(answer.usage.completion_tokens, n);
    assert.equal(answer.choices[0].finish_reason, "length");
  }
});

step("n=2, whole and streamed", "", async () => {
  const params = { model, messages: question, max_tokens: 8, n: 2, seed: 7, temperature: 1, ...(has("model") && { ignore_eos: true }) };
  const answer = await alice.chat.completions.create(params);
  assert.deepEqual(answer.choices.map((c) => c.index), [0, 1]);
  assert.equal(answer.usage.completion_tokens, 16);
  checkUsage(answer.usage);
  const one = await alice.chat.completions.create({ ...params, n: 1 });
  assert.equal(answer.usage.prompt_tokens, one.usage.prompt_tokens, "a prompt counts once");
  const stream = alice.chat.completions.stream({ ...params, stream_options: { include_usage: true } });
  const final = await stream.finalChatCompletion();
  assert.deepEqual(final.choices.map((c) => [c.index, c.message.content]), answer.choices.map((c) => [c.index, c.message.content]));
  assert.deepEqual(final.usage, answer.usage);
});

step("n=2 gives two different answers", "model", async () => {
  const answer = await alice.chat.completions.create({ model, messages: question, max_tokens: 24, n: 2, seed: 7, temperature: 1 });
  assert.notEqual(text(answer, 0), text(answer, 1));
});

step("the same seed gives the same answer, another seed another", "model", async () => {
  const said = async (seed) => text(await alice.chat.completions.create({ model, messages: question, max_tokens: 24, temperature: 1, seed }));
  const first = await said(1);
  assert.equal(await said(1), first);
  assert.notEqual(await said(2), first);
});

step("stop", "model", async () => {
  const params = { ...whole, max_tokens: 40 };
  const full = text(await alice.chat.completions.create(params));
  const words = full.split(" ").filter((w) => /^[a-z]{3,}$/i.test(w));
  const stop = words[Math.floor(words.length / 2)];
  assert.ok(stop && full.indexOf(stop) > 0, `no word to stop at in ${full.length} characters`);
  for (const given of [stop, ["never said", stop]]) {
    const answer = await alice.chat.completions.create({ ...params, stop: given });
    assert.equal(text(answer), full.slice(0, full.indexOf(stop)));
    assert.equal(answer.choices[0].finish_reason, "stop");
  }
});

step("logprobs, whole and streamed", "model", async () => {
  const params = { ...whole, logprobs: true, top_logprobs: 3 };
  const answer = await alice.chat.completions.create(params);
  const { content } = answer.choices[0].logprobs;
  assert.equal(content.length, answer.usage.completion_tokens);
  assert.equal(Buffer.from(content.flatMap((t) => t.bytes)).toString(), text(answer));
  for (const t of content) {
    assert.ok(t.logprob <= 0 && t.top_logprobs.length === 3 && t.top_logprobs[0].token === t.token, JSON.stringify(t));
  }
  const final = await alice.chat.completions.stream(params).finalChatCompletion();
  const spoken = (all) => all.map((t) => t.token).filter(Boolean); // the end of the text is a token in whole answers only
  assert.deepEqual(spoken(final.choices[0].logprobs.content), spoken(content));
  assert.equal((await alice.chat.completions.create(whole)).choices[0].logprobs ?? null, null, "logprobs that nobody asked for");
});

step("response_format json_schema", "model", async () => {
  const schema = { type: "object", properties: { sea: { type: "string", enum: ["salt", "fresh"] }, count: { type: "integer", minimum: 1, maximum: 5 } }, required: ["sea", "count"], additionalProperties: false };
  const params = { model, messages: question, max_tokens: 100, temperature: 0 };
  const free = text(await alice.chat.completions.create(params));
  assert.throws(() => JSON.parse(free), SyntaxError, "the model answers in JSON by itself: this would show nothing");
  const shaped = { ...params, response_format: { type: "json_schema", json_schema: { name: "sea", strict: true, schema } } };
  for (const answer of [await alice.chat.completions.parse(shaped), await alice.chat.completions.stream(shaped).finalChatCompletion()]) {
    const got = JSON.parse(text(answer));
    assert.deepEqual(Object.keys(got).sort(), ["count", "sea"]);
    assert.ok(["salt", "fresh"].includes(got.sea) && Number.isInteger(got.count), JSON.stringify(got));
  }
});

step("response_format json_object", "model json", async () => {
  const answer = await alice.chat.completions.create({ model, messages: question, max_tokens: 40, temperature: 0, response_format: { type: "json_object" } });
  assert.match(text(answer), /^\s*\{/);
});

step("user, metadata, store: false and the like are taken and go no further", "", async () => {
  const quiet = { user: "u-1", metadata: { order: "m-2" }, store: false, prompt_cache_key: "k-3", safety_identifier: "s-4", prompt_cache_retention: "24h" };
  const { answer, body } = await onlyCall(() => alice.chat.completions.create({ ...whole, ...quiet }));
  for (const name of Object.keys(quiet)) assert.ok(!(name in body) || name === "store", `${name} reached the engine`);
  assert.ok(!body.store && !/u-1|m-2|k-3|s-4/.test(JSON.stringify(body)), "a value reached the engine");
  assert.deepEqual(body.messages, question);
  await sameAsEngine(whole, answer);
  const error = await refused(OpenAI.BadRequestError, () => alice.chat.completions.create({ ...whole, store: true }));
  assert.equal(error.param, "store");
});

step("options that are null are as good as left out", "", async () => {
  const names = ["stop", "seed", "metadata", "store", "n", "top_p", "logit_bias", "logprobs", "top_logprobs", "stream_options", "stream", "service_tier",
    "reasoning_effort", "frequency_penalty", "presence_penalty", "prediction", "audio", "modalities", "verbosity", "max_completion_tokens", "safety_identifier", "prompt_cache_key"];
  const answer = await alice.chat.completions.create({ ...whole, ...Object.fromEntries(names.map((name) => [name, null])) });
  await sameAsEngine(whole, answer);
});
