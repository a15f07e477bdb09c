// Vercel's ai with one of its providers, in conversations of several kinds: MODEL is "responses", "chat", "anthropic" or "google", HOW "whole" or "stream".
import { createAnthropic } from "@ai-sdk/anthropic";
import { createGoogleGenerativeAI } from "@ai-sdk/google";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { MODEL, HOW, URL: url, KEY: apiKey } = process.env;
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey });
const models = {
  responses: () => openai("any"),
  chat: () => openai.chat("any"),
  anthropic: () => createAnthropic({ baseURL: `${url}/v1`, apiKey })("any"),
  google: () => createGoogleGenerativeAI({ baseURL: `${url}/v1beta`, apiKey })("any"),
};
const inputSchema = z.object({ place: z.string() });
const weather = tool({ description: "The weather.", inputSchema, execute: async ({ place }) => `sunny in ${place}` });
const population = tool({ description: "Who lives there.", inputSchema, execute: async () => ({ people: 4 }) });
const broken = tool({ description: "Traffic.", inputSchema, execute: async () => { throw new Error("no traffic"); } });
globalThis.AI_SDK_LOG_WARNINGS = false;
const all = { model: models[MODEL](), maxRetries: 0 };

async function run(call) {
  if (HOW === "whole") {
    const { text, response } = await generateText({ ...all, ...call });
    return { text, messages: response.messages };
  }
  const said = streamText({ ...all, ...call, onError: ({ error }) => { throw error; } });
  return { text: await said.text, messages: (await said.response).messages };
}

async function say(call) {
  console.log((await run(call)).text);
}

const stopWhen = stepCountIs(4);
await say({ prompt: "What is the weather in Berlin?", tools: { weather }, stopWhen });
const messages = [{ role: "user", content: "What is the weather in Berlin, and how many live there? Look both up at once." }];
const tools = { weather, population };
const system = "You look things up.";
const first = await run({ system, messages, tools, stopWhen, maxOutputTokens: 500, stopSequences: ["END"] });
console.log(first.text);
messages.push(...first.messages, { role: "user", content: "Think first, and look up the weather in Berlin." });
await say({ system, messages, tools, stopWhen, maxOutputTokens: 500, stopSequences: ["END"] });
await say({ prompt: "How is the traffic?", tools: { broken }, toolChoice: "required", stopWhen: stepCountIs(1) });
await say({ prompt: "How is the traffic in Berlin?", tools: { broken }, stopWhen });
const output = Output.object({ schema: z.object({ answer: z.number(), why: z.array(z.string()).optional() }) });
await say({ prompt: "The answer, as JSON.", output });
