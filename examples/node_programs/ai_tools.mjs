// The Vercel AI SDK: generateText with a tool and several steps.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";

const openai = createOpenAI({ headers: { "x-agl-agent": "forecaster" } });
const { text, steps } = await generateText({
  model: openai.chat("gpt-5"),
  prompt: "What is the weather in Paris?",
  stopWhen: stepCountIs(5),
  tools: {
    weather: tool({
      description: "The weather of a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => ({ city, temperature: 21 }),
    }),
  },
});
console.log(steps.length, text);
