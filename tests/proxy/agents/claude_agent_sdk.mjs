// Anthropic's agent SDK: a conversation of two questions with tools of its own, which it runs in this process. It starts Claude Code, which is at CLAUDE.
import { createSdkMcpServer, query, tool } from "@anthropic-ai/claude-agent-sdk";
import { z } from "zod";

const { CLAUDE, URL: url, KEY: key, HOME, PATH } = process.env;
const weather = tool("weather", "The weather of a place.", { place: z.string() }, async ({ place }) => ({
  content: [{ type: "text", text: `sunny in ${place}` }],
}));
const population = tool("population", "Who lives there.", { place: z.string() }, async () => ({
  content: [{ type: "text", text: "4 people" }],
}));
let answered;
async function* questions() {
  for (const content of [
    "What is the weather in Berlin, and how many live there? Look both up at once.",
    "And what is the weather in Berlin now? Look both up at once.",
  ]) {
    const done = new Promise((resolve) => (answered = resolve));
    yield { type: "user", message: { role: "user", content }, parent_tool_use_id: null };
    await done;
  }
}
const messages = query({
  prompt: questions(),
  options: {
    model: "anything",
    systemPrompt: "You tell the weather.",
    tools: [],
    mcpServers: { sky: createSdkMcpServer({ name: "sky", version: "1.0.0", tools: [weather, population] }) },
    allowedTools: ["mcp__sky__weather", "mcp__sky__population"],
    settingSources: [],
    includePartialMessages: true,
    maxTurns: 4,
    cwd: HOME,
    pathToClaudeCodeExecutable: CLAUDE,
    env: { HOME, PATH, NO_PROXY: "127.0.0.1", ANTHROPIC_BASE_URL: url, ANTHROPIC_API_KEY: key, DISABLE_AUTOUPDATER: "1" },
    stderr: (text) => console.error(text),
  },
});
for await (const message of messages) {
  if (message.type === "result") {
    console.log(message.result ?? message.subtype);
    answered();
  }
}
