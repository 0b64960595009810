// A GGUF file in llama.cpp: the ids of texts, and greedy answers to prompts of ids.
//
// stdin: {"file", "texts": [text], "prompts": [[id]], "longest"}; stdout: {"ids": [[id]], "answers": [[id]]}, one line.
// An answer ends with the token that ends it. llama.cpp is the prebuilt one of node-llama-cpp, on the CPU.
import {readFileSync} from "node:fs";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const asked = JSON.parse(readFileSync(0, "utf8"));
const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: asked.file});
const ids = asked.texts.map((text) => model.tokenize(text, true));
const contextSize = Math.max(0, ...asked.prompts.map((prompt) => prompt.length)) + asked.longest;
const context = await model.createContext({contextSize});
const sequence = context.getSequence();
const answers = [];
for (const prompt of asked.prompts) {
    await sequence.clearHistory();
    const answer = [];
    for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
        answer.push(token);
        if (answer.length === asked.longest || model.isEogToken(token)) break;
    }
    answers.push(answer);
}
process.stdout.write(JSON.stringify({ids, answers}) + "\n");
await llama.dispose();
