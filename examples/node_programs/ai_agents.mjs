// The Vercel AI SDK: two agents, each a loop of tools; the editor asks the researcher by a tool. One of them speaks
// over the Messages API.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { stepCountIs, tool, ToolLoopAgent } from "ai";
import { z } from "zod";

const named = (name) => ({ headers: { "x-agl-agent": name } });
const researcher = new ToolLoopAgent({
  model: createAnthropic(named("researcher"))("claude-sonnet-4-5"),
  instructions: "You look things up.",
  stopWhen: stepCountIs(4),
  tools: {
    look_up: tool({
      description: "Look a word up.",
      inputSchema: z.object({ word: z.string() }),
      execute: async ({ word }) => `${word}: a city on the Seine`,
    }),
  },
});
const editor = new ToolLoopAgent({
  model: createOpenAI(named("editor"))("gpt-5"),
  instructions: "You write short articles. Ask the researcher.",
  stopWhen: stepCountIs(4),
  tools: {
    ask_researcher: tool({
      description: "Ask the researcher.",
      inputSchema: z.object({ question: z.string() }),
      execute: async ({ question }) => (await researcher.generate({ prompt: question })).text,
    }),
  },
});
console.log((await editor.generate({ prompt: "An article about Paris." })).text);
