// The openai package: an answer in a form that zod describes, parsed by the SDK.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const Event = z.object({ name: z.string(), day: z.string(), guests: z.array(z.string()) });
const client = new OpenAI({ defaultHeaders: { "x-agl-agent": "secretary" } });
const answer = await client.chat.completions.parse({
  model: "gpt-5",
  messages: [{ role: "user", content: "Ann and Ben go to a science fair on Friday." }],
  response_format: zodResponseFormat(Event, "event"),
});
console.log(answer.choices[0].message.parsed.name);
