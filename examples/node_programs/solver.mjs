// Solve a word problem with a calculator: the openai package, a loop of tools, the answer on standard output.
//   OPENAI_BASE_URL=… OPENAI_API_KEY=… node solver.mjs "Anna keeps 13 stamps. …"
import OpenAI from "openai";

const form = "When you have the answer, give it between three sharps: ### ANSWER: <answer> ###";
const calculator = {
  type: "function",
  function: {
    name: "calculate",
    description: "Calculate the value of an arithmetic expression.",
    parameters: { type: "object", properties: { expression: { type: "string" } }, required: ["expression"] },
  },
};

// sum = product (("+" | "-") product)*; product = factor (("*" | "/") factor)*; factor = number | "(" sum ")"
function parsed(text) {
  const words = text.match(/\d+|[-+*/()]/g) ?? [];
  if (words.join("") !== text.replace(/\s/g, "")) throw new Error("only numbers, + - * / and brackets");
  const factor = () => {
    const word = words.shift();
    if (/^\d+$/.test(word ?? "")) return Number(word);
    if (word !== "(") throw new Error("a number is missing");
    const value = sum();
    if (words.shift() !== ")") throw new Error("a bracket is missing");
    return value;
  };
  const product = () => {
    let value = factor();
    while (words[0] === "*" || words[0] === "/") {
      const sign = words.shift();
      const next = factor();
      if (sign === "/" && next === 0) throw new Error("division by zero");
      value = sign === "*" ? value * next : value / next;
    }
    return value;
  };
  const sum = () => {
    let value = product();
    while (words[0] === "+" || words[0] === "-") value = words.shift() === "+" ? value + product() : value - product();
    return value;
  };
  const value = sum();
  if (words.length) throw new Error("it goes on");
  return value;
}

function calculate(given) {
  try {
    return String(parsed(JSON.parse(given).expression ?? ""));
  } catch (error) {
    return `error: ${error.message}`;
  }
}

const client = new OpenAI({ defaultHeaders: { "x-agl-agent": "solver" } });
const messages = [
  { role: "system", content: "Use the calculator." },
  { role: "user", content: `${process.argv[2]}\n\n${form}` },
];
let said = "";
for (let turn = 0; turn < 4; turn++) {
  const model = process.env.OPENAI_MODEL ?? "gpt-5";
  const answer = await client.chat.completions.create({ model, messages, tools: [calculator] });
  const { role, content, tool_calls: calls } = answer.choices[0].message;
  if (!calls?.length) {
    said = content ?? "";
    break;
  }
  messages.push({ role, content, tool_calls: calls });
  for (const call of calls) {
    messages.push({ role: "tool", tool_call_id: call.id, content: calculate(call.function.arguments) });
  }
}
console.log(said);
