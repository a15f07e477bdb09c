// OpenAI's SDK, which runs the tools itself.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.URL}/v1`, apiKey: process.env.KEY, maxRetries: 0 });
const weather = {
  type: "function",
  function: {
    name: "weather",
    description: "The weather of a place.",
    parameters: { type: "object", properties: { place: { type: "string" } }, required: ["place"] },
    parse: JSON.parse,
    function: ({ place }) => `sunny in ${place}`,
  },
};
const runner = client.chat.completions.runTools({
  model: "any",
  messages: [{ role: "user", content: "What is the weather in Berlin?" }],
  tools: [weather],
  stream: process.env.HOW === "stream",
});
console.log(await runner.finalContent());
