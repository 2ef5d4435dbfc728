// The older endpoint, with one prompt and with a list of them.
import assert from "node:assert/strict";
import { alice, checkSilent, checkUsage, collect, engine, model, plain, step } from "./rig.mjs";

const prompts = ["The capital of France is", "Two and two make", "The sea is salt because"];
const params = { model, max_tokens: 8, temperature: 0 };
const ask = (prompt, more = {}) => alice.completions.create({ ...params, prompt, ...more });

step("completions, as the engine answers them", "", async () => {
  const answer = await ask(prompts[0]);
  const own = await engine.completions.create(plain({ ...params, prompt: prompts[0] }));
  assert.ok(own.choices[0].text.length > 0);
  assert.equal(answer.object, "text_completion");
  assert.match(answer.id, /^cmpl-/);
  assert.equal(answer.choices[0].text, own.choices[0].text);
  assert.equal(answer.choices[0].finish_reason, own.choices[0].finish_reason);
  assert.equal(answer.usage.prompt_tokens, own.usage.prompt_tokens);
  assert.deepEqual(answer.choices.map((c) => c.index), [0]);
  checkUsage(answer.usage);
  checkSilent(answer);
});

for (const stream of [false, true]) {
  step(`completions, a list of prompts${stream ? ", streamed" : ""}`, "", async () => {
    const alone = [];
    for (const prompt of prompts) alone.push(await ask(prompt));
    for (const a of alone) assert.ok(a.choices[0].finish_reason, "an answer alone has no end");
    const sum = (name) => alone.reduce((n, a) => n + a.usage[name], 0);
    const said = prompts.map(() => "");
    let usage;
    if (stream) {
      const chunks = await collect(ask(prompts, { stream: true, stream_options: { include_usage: true } }));
      assert.equal(new Set(chunks.map((c) => c.id)).size, 1);
      for (const c of chunks.flatMap((c) => c.choices)) said[c.index] += c.text;
      usage = chunks.filter((c) => c.usage);
      assert.equal(usage.length, 1, "chunks with usage");
      usage = usage[0].usage;
      const ends = chunks.flatMap((c) => c.choices).filter((c) => c.finish_reason).sort((a, b) => a.index - b.index);
      assert.deepEqual(ends.map((c) => [c.index, c.finish_reason]), alone.map((a, i) => [i, a.choices[0].finish_reason]));
    } else {
      const answer = await ask(prompts);
      assert.deepEqual(answer.choices.map((c) => c.index), [0, 1, 2]);
      assert.deepEqual(answer.choices.map((c) => c.finish_reason), alone.map((a) => a.choices[0].finish_reason));
      answer.choices.forEach((c) => { said[c.index] = c.text; });
      usage = answer.usage;
    }
    assert.deepEqual(said, alone.map((a) => a.choices[0].text));
    assert.equal(usage.prompt_tokens, sum("prompt_tokens"));
    assert.equal(usage.completion_tokens, sum("completion_tokens"));
  });
}

step("completions, the prompts of a list have answers of their own", "model", async () => {
  const answer = await ask(prompts);
  assert.equal(new Set(answer.choices.map((c) => c.text)).size, prompts.length);
  assert.match(answer.choices[0].text, /Paris/);
});
