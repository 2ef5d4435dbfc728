// Tools. The conversation holds calls that were answered before, so that a small model
// goes on in the same way.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { alice, collect, model, onlyCall, refused, step, user } from "./rig.mjs";

const tool = (name, description, key, values) => ({
  type: "function",
  function: { name, description, strict: true, parameters: { type: "object", properties: { [key]: { type: "string", enum: values } }, required: [key], additionalProperties: false } },
});
const tools = [tool("weather", "The weather of a city.", "city", ["Paris", "Oslo"]), tool("clock", "The time in a zone.", "zone", ["UTC", "CET"])];

let calls = 0;
const turn = (asked, name, args, result, said) => {
  const id = `call_${++calls}`;
  return [
    user(asked),
    { role: "assistant", content: null, tool_calls: [{ id, type: "function", function: { name, arguments: JSON.stringify(args) } }] },
    { role: "tool", tool_call_id: id, content: result },
    { role: "assistant", content: said },
  ];
};
const messages = [
  ...turn("How is the weather in Oslo?", "weather", { city: "Oslo" }, "snow", "It snows in Oslo."),
  ...turn("What time is it in CET?", "clock", { zone: "CET" }, "12:30", "It is 12:30 in CET."),
  ...turn("How is the weather in Oslo now?", "weather", { city: "Oslo" }, "rain", "It rains in Oslo."),
  user("How is the weather in Paris?"),
];
const params = { model, messages, tools, tool_choice: "required", parallel_tool_calls: false, max_tokens: 80, temperature: 0 };

function checkCall(choice) {
  assert.equal(choice.finish_reason, "tool_calls");
  assert.equal(choice.message.tool_calls.length, 1);
  const [call] = choice.message.tool_calls;
  assert.equal(call.type, "function");
  assert.ok(call.id.length > 0, "the call has no id");
  assert.equal(call.function.name, "weather");
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
  return call;
}

step("tools, tool_choice required", "tools", async () => {
  const { answer, body } = await onlyCall(() => alice.chat.completions.create(params));
  checkCall(answer.choices[0]);
  assert.deepEqual(body.tools, tools);
  assert.deepEqual(body.messages, messages);
});

step("tools, tool_choice none", "tools", async () => {
  const { choices: [choice] } = await alice.chat.completions.create({ ...params, tool_choice: "none", max_tokens: 20 });
  assert.equal(choice.message.tool_calls, undefined);
  assert.ok(["stop", "length"].includes(choice.finish_reason), choice.finish_reason);
  assert.ok(choice.message.content.length > 0);
});

step("tools, one that is named: obeyed, or refused by name", "tools", async () => {
  const named = { ...params, tool_choice: { type: "function", function: { name: "clock" } } };
  let answer;
  try {
    answer = await alice.chat.completions.create(named);
  } catch (error) {
    assert.ok(error instanceof OpenAI.BadRequestError, error.message);
    assert.equal(error.param, "tool_choice");
    return "refused";
  }
  assert.equal(answer.choices[0].message.tool_calls[0].function.name, "clock", "another tool than the named one was called");
  return "obeyed";
});

step("tools, streamed", "tools", async () => {
  const chunks = await collect(alice.chat.completions.create({ ...params, stream: true }));
  const deltas = chunks.flatMap((c) => c.choices[0]?.delta.tool_calls ?? []);
  assert.ok(deltas.length > 2, `${deltas.length} deltas`);
  assert.equal(deltas.filter((d) => d.id).length, 1, "the id comes once");
  assert.ok(deltas.every((d) => d.index === 0));
  assert.deepEqual(chunks.flatMap((c) => c.choices).map((c) => c.finish_reason).filter(Boolean), ["tool_calls"]);
  assert.deepEqual(JSON.parse(deltas.map((d) => d.function.arguments ?? "").join("")), { city: "Paris" });
});

step("tools, streamed, put together by the SDK", "tools", async () => {
  const stream = alice.chat.completions.stream(params);
  const heard = { deltas: [], done: [] };
  stream.on("tool_calls.function.arguments.delta", (event) => heard.deltas.push(event));
  stream.on("tool_calls.function.arguments.done", (event) => heard.done.push(event));
  const final = await stream.finalChatCompletion();
  const call = checkCall(final.choices[0]);
  assert.ok(heard.deltas.length > 1, `${heard.deltas.length} deltas`);
  assert.equal(heard.deltas.map((d) => d.arguments_delta).join(""), call.function.arguments);
  assert.equal(heard.done.length, 1);
  assert.deepEqual(heard.done[0].parsed_arguments, { city: "Paris" });
});

step("tools, the result sent back", "tools", async () => {
  const first = await alice.chat.completions.create(params);
  const call = checkCall(first.choices[0]);
  const whole = [...messages, first.choices[0].message, { role: "tool", tool_call_id: call.id, content: "fog" }];
  const { answer, body } = await onlyCall(() => alice.chat.completions.create({ ...params, tool_choice: "auto", messages: whole }));
  assert.deepEqual(body.messages, whole);
  assert.match(answer.choices[0].message.content, /fog/i);
  assert.equal(answer.choices[0].message.tool_calls, undefined);
  assert.equal(answer.choices[0].finish_reason, "stop");
});

for (const stream of [false, true]) {
  step(`runTools${stream ? ", streamed" : ""}`, "tools", async () => {
    const got = [];
    const weather = { ...tools[0], function: { ...tools[0].function, parse: JSON.parse, function: ({ city }) => { got.push(city); return `fog in ${city}`; } } };
    const runner = alice.chat.completions.runTools({ ...params, stream, tool_choice: "auto", tools: [weather] }, { maxChatCompletions: 3 });
    const final = await runner.finalContent();
    assert.deepEqual(got, ["Paris"]);
    assert.equal(await runner.finalFunctionToolCallResult(), "fog in Paris");
    assert.match(final, /fog/i);
    assert.equal(runner.allChatCompletions().length, 2);
  });
}

step("tools whose parameters are named like control fields pass; one out of form is refused", "tools", async () => {
  const odd = tool("route", "Route a ticket.", "priority", ["high", "low"]);
  odd.function.parameters.properties.id_slot = { type: "integer" };
  const { body } = await onlyCall(() => alice.chat.completions.create({ ...params, tools: [odd], tool_choice: "auto", max_tokens: 4 }));
  assert.deepEqual(body.tools, [odd]);
  const error = await refused(OpenAI.BadRequestError, () => alice.chat.completions.create({ ...params, tools: [{ type: "function", function: { description: "no name" } }] }));
  assert.match(error.param, /^tools/);
});
