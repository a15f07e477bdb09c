// Google's client for Node: a chat that calls one tool, and one with a system prompt that calls two tools at once. HOW is "whole" or "stream".
import { FunctionCallingConfigMode, GoogleGenAI, Type } from "@google/genai";

const { HOW, URL: baseUrl, KEY: apiKey } = process.env;
const client = new GoogleGenAI({ apiKey, httpOptions: { baseUrl } });
const declared = (name, description) => ({
  name,
  description,
  parameters: { type: Type.OBJECT, properties: { place: { type: Type.STRING } }, required: ["place"] },
});
const tools = { weather: (place) => `sunny in ${place}`, population: (place) => `4 people in ${place}` };
const declarations = [declared("weather", "The weather of a place."), declared("population", "Who lives there.")];

async function send(chat, message) {
  if (HOW !== "stream") {
    const reply = await chat.sendMessage({ message });
    return { text: reply.text, calls: reply.functionCalls ?? [] };
  }
  const said = { text: "", calls: [] };
  for await (const piece of await chat.sendMessageStream({ message })) {
    said.text += piece.text ?? "";
    said.calls.push(...(piece.functionCalls ?? []));
  }
  return said;
}

async function converse(config, message) {
  const chat = client.chats.create({ model: "any", config });
  let said = await send(chat, message);
  while (said.calls.length > 0) {
    const answered = said.calls.map(({ id, name, args }) => ({
      functionResponse: { id, name, response: { output: tools[name](args.place) } },
    }));
    said = await send(chat, answered);
  }
  console.log(said.text);
}

await converse({ tools: [{ functionDeclarations: declarations.slice(0, 1) }] }, "What is the weather in Berlin?");
await converse(
  {
    systemInstruction: "You look things up.",
    tools: [{ functionDeclarations: declarations }],
    toolConfig: { functionCallingConfig: { mode: FunctionCallingConfigMode.AUTO } },
    stopSequences: ["END"],
    maxOutputTokens: 500,
    temperature: 1,
    seed: 7,
  },
  "What is the weather in Berlin, and how many live there? Look both up at once.",
);
