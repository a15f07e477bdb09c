// Vercel's ai with one of its providers: MODEL is "responses", "chat", "anthropic" or "google", HOW "whole" or "stream".
import { createAnthropic } from "@ai-sdk/anthropic";
import { createGoogleGenerativeAI } from "@ai-sdk/google";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { MODEL, HOW, URL: url, KEY: apiKey } = process.env;
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey });
const models = {
  responses: () => openai("any"),
  chat: () => openai.chat("any"),
  anthropic: () => createAnthropic({ baseURL: `${url}/v1`, apiKey })("any"),
  google: () => createGoogleGenerativeAI({ baseURL: `${url}/v1beta`, apiKey })("any"),
};
const weather = tool({
  description: "The weather of a place.",
  inputSchema: z.object({ place: z.string() }),
  execute: async ({ place }) => `sunny in ${place}`,
});
const call = {
  model: models[MODEL](),
  tools: { weather },
  prompt: "What is the weather in Berlin?",
  stopWhen: stepCountIs(4),
  maxRetries: 0,
};
if (HOW === "stream") {
  console.log(await streamText({ ...call, onError: ({ error }) => { throw error; } }).text);
} else {
  console.log((await generateText(call)).text);
}
