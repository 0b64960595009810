// The Vercel AI SDK: an answer in a form that zod describes.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output } from "ai";
import { z } from "zod";

const openai = createOpenAI({ headers: { "x-agl-agent": "cook" } });
const { output } = await generateText({
  model: openai("gpt-5"),
  output: Output.object({ schema: z.object({ name: z.string(), steps: z.array(z.string()) }) }),
  prompt: "Write a recipe for bread.",
});
console.log(output.name, output.steps.length);
