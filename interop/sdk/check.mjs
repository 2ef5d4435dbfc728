// The official openai package against a running Bulkhead: list, complete, chat,
// stream, leave a stream, and read two errors. BASE_URL (with /v1) and API_KEY
// come from the environment. It prints one line for each check and exits 1 at
// the first that fails.
import assert from "node:assert/strict";
import OpenAI from "openai";

const { BASE_URL, API_KEY } = process.env;
assert.ok(BASE_URL && API_KEY, "set BASE_URL and API_KEY");
const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0, timeout: 60_000 });

// The model continues what its context holds: after the second opening comes
// what followed the first.
const model = "recall";
const opening = "The harbour lamp of Skerry Point is lit ";
const rest = "at a quarter past seven by the keeper.";
const record = `${opening}${rest}\nNothing else happened on that evening.\n${opening}`;
const max_tokens = rest.length;
const messages = [{ role: "user", content: record }];

async function check(name, run) {
  await run();
  console.log(`ok  openai-node  ${name}`);
}

function checkUsage(usage) {
  assert.ok(usage.prompt_tokens >= record.length, `prompt_tokens ${usage.prompt_tokens} below the prompt's ${record.length} bytes`);
  assert.equal(usage.completion_tokens, rest.length);
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
}

async function stream(options) {
  const got = { text: "", ids: new Set(), finish: [], usage: [] };
  for await (const chunk of await client.chat.completions.create({ model, messages, max_tokens, temperature: 0, stream: true, ...options })) {
    got.ids.add(chunk.id);
    if (chunk.usage) got.usage.push(chunk.usage);
    for (const choice of chunk.choices) {
      got.text += choice.delta.content ?? "";
      if (choice.finish_reason) got.finish.push(choice.finish_reason);
    }
  }
  return got;
}

async function refused(kind, call) {
  try {
    await call();
  } catch (error) {
    assert.ok(error instanceof kind, `got ${error.constructor.name}: ${error.message}`);
    assert.ok(error.code, "the error has no code");
    assert.ok(!error.message.includes(record), "the error repeats the prompt");
    return;
  }
  assert.fail("the call succeeded");
}

await check("models.list", async () => {
  const ids = [];
  for await (const m of client.models.list()) ids.push(m.id);
  assert.deepEqual(ids, [model]);
});
await check("completions.create", async () => {
  const answer = await client.completions.create({ model, prompt: record, max_tokens, temperature: 0 });
  assert.equal(answer.choices[0].text, rest);
  assert.equal(answer.choices[0].finish_reason, "length");
  checkUsage(answer.usage);
});
await check("chat.completions.create", async () => {
  const answer = await client.chat.completions.create({ model, messages, max_tokens, temperature: 0 });
  assert.equal(answer.choices[0].message.content, rest);
  assert.equal(answer.choices[0].message.role, "assistant");
  assert.equal(answer.choices[0].finish_reason, "length");
  checkUsage(answer.usage);
});
await check("chat.completions.create, stream", async () => {
  const got = await stream({});
  assert.equal(got.text, rest);
  assert.deepEqual(got.finish, ["length"]);
  assert.equal(got.ids.size, 1, "one id for all chunks");
  assert.equal(got.usage.length, 0, "usage was not asked for");
});
await check("chat.completions.create, stream with usage", async () => {
  const got = await stream({ stream_options: { include_usage: true } });
  assert.equal(got.text, rest);
  assert.equal(got.usage.length, 1);
  checkUsage(got.usage[0]);
});
await check("a stream that is left, and the next request", async () => {
  const left = await client.chat.completions.create({ model, messages, max_tokens, temperature: 0, stream: true });
  for await (const chunk of left) {
    assert.ok(chunk.id);
    break;
  }
  const got = await stream({});
  assert.equal(got.text, rest);
});
await check("an unknown model is 404", () =>
  refused(OpenAI.NotFoundError, () => client.chat.completions.create({ model: "no-such-model", messages, max_tokens })));
await check("a wrong key is 401", () =>
  refused(OpenAI.AuthenticationError, () =>
    new OpenAI({ baseURL: BASE_URL, apiKey: "wrong", maxRetries: 0 }).chat.completions.create({ model, messages, max_tokens })));
await check("more output than the model has is 400", () =>
  refused(OpenAI.BadRequestError, () => client.chat.completions.create({ model, messages, max_tokens: 1_000_000_000 })));
