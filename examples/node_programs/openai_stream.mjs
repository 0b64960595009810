// The openai package: a stream of chat completions, printed as it comes; a second agent by a header of one request.
import OpenAI from "openai";

const client = new OpenAI({ defaultHeaders: { "x-agl-agent": "writer" } });
const messages = [{ role: "user", content: "Write a line about the sea." }];
const stream = client.chat.completions.stream({ model: "gpt-5", messages });
stream.on("content", (piece) => process.stdout.write(piece));
const line = await stream.finalContent();
const judged = await client.chat.completions.create(
  { model: "gpt-5", messages: [{ role: "user", content: `Judge this line: ${line}` }] },
  { headers: { "x-agl-agent": "critic" } },
);
console.log(`\n${judged.choices[0].message.content}`);
