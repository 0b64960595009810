// The Vercel AI SDK: streamText over the Responses API; its agent is named by the headers of the call.
import { openai } from "@ai-sdk/openai";
import { streamText } from "ai";

const { textStream } = streamText({
  model: openai("gpt-5"),
  system: "You are a poet.",
  prompt: "Write a line about the sea.",
  headers: { "x-agl-agent": "poet", baggage: "agl.phase=night" },
});
for await (const piece of textStream) process.stdout.write(piece);
console.log();
