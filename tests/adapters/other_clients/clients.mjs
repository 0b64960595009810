// Clients in JavaScript, as they come, at the gateway: `node clients.mjs NAME URL` runs one of them and prints its
// result as JSON. The variables are those that `agl run` sets.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, jsonSchema, streamText, tool } from "ai";
import OpenAI from "openai";

globalThis.AI_SDK_LOG_WARNINGS = false; // they would be printed beside the result
const named = (name) => ({ "x-agl-agent": name });
const schema = { type: "object", properties: { a: { type: "number" } }, required: ["a"] };
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const tools = {
  add: tool({ description: "adds one", inputSchema: jsonSchema(schema), execute: async ({ a }) => `${a + 1}` }),
};
const loop = { prompt: "add one to 41", tools, stopWhen: stepCountIs(3) };

async function sdk(program) {
  const found = await generateText(program);
  return { text: found.text, steps: found.steps.length };
}

const clients = {
  async openai_chat() {
    const client = new OpenAI({ defaultHeaders: named("writer") });
    const first = await client.chat.completions.create({ model: "policy", messages: [{ role: "user", content: "hi" }] });
    return { text: first.choices[0].message.content };
  },
  async openai_responses() {
    const client = new OpenAI({ defaultHeaders: named("writer") });
    const first = await client.responses.create({ model: "policy", input: "one" });
    const stream = client.responses.stream({ model: "policy", input: "two", previous_response_id: first.id });
    const second = await stream.finalResponse();
    const kept = await client.responses.retrieve(second.id);
    const items = await client.responses.inputItems.list(second.id, { order: "asc" });
    return { text: kept.output_text, previous: kept.previous_response_id === first.id, items: items.data.length };
  },
  async openai_conversation() {
    const client = new OpenAI({ defaultHeaders: named("writer") });
    const conversation = await client.conversations.create({});
    for (const input of ["one", "two"]) {
      await client.responses.create({ model: "policy", input, conversation: conversation.id });
    }
    const items = await client.conversations.items.list(conversation.id);
    return { items: items.data.length };
  },
  ai_responses: () => sdk({ model: createOpenAI({ headers: named("writer") })("policy"), ...loop }),
  ai_responses_unstored: () =>
    sdk({
      model: createOpenAI({ headers: named("writer") })("policy"),
      providerOptions: { openai: { store: false } },
      ...loop,
    }),
  ai_chat: () => sdk({ model: createOpenAI({ headers: named("writer") }).chat("policy"), ...loop }),
  ai_messages: () => sdk({ model: createAnthropic({ headers: named("writer") })("policy"), ...loop }),
  async ai_stream() {
    const found = streamText({ model: createOpenAI()("policy"), headers: named("writer"), ...loop });
    let text = "";
    for await (const piece of found.textStream) text += piece;
    return { text, steps: (await found.steps).length };
  },
  async ai_messages_stream() {
    const found = streamText({ model: createAnthropic()("policy"), headers: named("writer"), ...loop });
    let text = "";
    for await (const piece of found.textStream) text += piece;
    return { text, steps: (await found.steps).length };
  },
  ai_image: () =>
    sdk({
      model: createOpenAI({ headers: named("writer") })("policy"),
      messages: [
        {
          role: "user",
          content: [
            { type: "text", text: "what is it?" },
            { type: "image", image: Buffer.from(pixel, "base64"), mediaType: "image/png" },
          ],
        },
      ],
    }),
};

console.log(JSON.stringify(await clients[process.argv[2]]()));
