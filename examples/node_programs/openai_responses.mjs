// The openai package: the Responses API, where the second turn goes on by previous_response_id, as a stream.
import OpenAI from "openai";

const client = new OpenAI({ defaultHeaders: { "x-agl-agent": "guide" } });
const first = await client.responses.create({ model: "gpt-5", input: "Name a city." });
const stream = client.responses.stream({ model: "gpt-5", input: "And another?", previous_response_id: first.id });
const second = await stream.finalResponse();
console.log(first.output_text, second.output_text);
