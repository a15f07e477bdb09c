// Anthropic's SDK, which runs the tools itself.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.URL, apiKey: process.env.KEY, maxRetries: 0 });
const weather = {
  type: "custom",
  name: "weather",
  description: "The weather of a place.",
  input_schema: { type: "object", properties: { place: { type: "string" } }, required: ["place"] },
  parse: (input) => input,
  run: ({ place }) => `sunny in ${place}`,
};
const runner = client.beta.messages.toolRunner({
  model: "any",
  max_tokens: 1000,
  messages: [{ role: "user", content: "What is the weather in Berlin?" }],
  tools: [weather],
  stream: process.env.HOW === "stream",
});
const last = await runner.runUntilDone();
console.log(last.content.map((block) => block.text ?? "").join(""));
