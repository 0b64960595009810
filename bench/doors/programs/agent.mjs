// A program for Agent Lightning 1.0: it knows three variables, and what `env_map` gave it.
const { AGL_KEY, AGL_OPENAI_BASE_URL, AGL_EVENT_URL, QUESTION, EXPRESSION } = process.env;
const headers = { Authorization: `Bearer ${AGL_KEY}`, "Content-Type": "application/json" };

async function post(url, body) {
  const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${url}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

const calculate = {
  type: "function",
  function: {
    name: "calculate",
    description: "Calculate the value of an arithmetic expression.",
    parameters: { type: "object", properties: { expression: { type: "string" } }, required: ["expression"] },
  },
};
const messages = [
  { role: "system", content: "Use the calculator." },
  { role: "user", content: QUESTION },
];
const asked = { model: "auto", messages, tools: [calculate] };
const answer = await post(`${AGL_OPENAI_BASE_URL}/chat/completions`, asked);
const value = JSON.stringify(answer.choices[0].message).includes(EXPRESSION) ? 1.0 : 0.0;
await post(AGL_EVENT_URL, { event_type: "note", data: { calls: 1 } });
await post(AGL_EVENT_URL, { event_type: "reward", data: { value } });
console.log(`posted ${value}`);
