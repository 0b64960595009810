// The openai package: its own loop of tools over chat completions. The agent's name is a default header.
import OpenAI from "openai";

const client = new OpenAI({ defaultHeaders: { "x-agl-agent": "forecaster", baggage: "agl.phase=day" } });
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const runner = client.chat.completions.runTools({
  model: "gpt-5",
  messages: [{ role: "user", content: "What is the weather in Paris?" }],
  tools: [
    {
      type: "function",
      function: {
        name: "get_weather",
        description: "The weather of a city.",
        parameters,
        parse: JSON.parse,
        function: ({ city }) => `It is sunny in ${city}.`,
      },
    },
  ],
});
console.log(await runner.finalContent());
