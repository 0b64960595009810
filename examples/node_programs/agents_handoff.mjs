// The OpenAI Agents SDK for JavaScript: a handoff, and a tool of the agent that takes over. The SDK knows its agents and
// tells nobody else; here one client with a header stands for the program.
import { Agent, run, setDefaultOpenAIClient, setTracingDisabled, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";

setTracingDisabled(true);
setDefaultOpenAIClient(new OpenAI({ defaultHeaders: { "x-agl-agent": "desk" } }));
const weather = tool({
  name: "get_weather",
  description: "The weather of a city.",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `It is sunny in ${city}.`,
});
const forecaster = new Agent({ name: "Forecaster", instructions: "You know the weather.", tools: [weather] });
const triage = Agent.create({ name: "Triage", instructions: "Hand over.", handoffs: [forecaster] });
console.log((await run(triage, "What is the weather in Paris?")).finalOutput);
