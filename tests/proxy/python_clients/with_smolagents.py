"""smolagents: agents that call tools, and agents that write code."""

from __future__ import annotations

from typing import Any

from asking import ANSWER, BERLIN, ROME, URL, hold, say, weather
from smolagents import CodeAgent, LiteLLMModel, OpenAIModel, ToolCallingAgent, tool

TOOL = tool(weather)
FINAL = ("final_answer", {"answer": ANSWER})


def model(key: str, kind: str) -> Any:
    if kind == "litellm":
        return LiteLLMModel(model_id="anthropic/claude-opus-4-5", api_base=URL, api_key=key)
    return OpenAIModel(model_id="gpt-5.4", api_base=f"{URL}/v1", api_key=key)


def calling(key: str, kind: str, stream: bool, *steps: Any, times: int = 1) -> str:
    agent = ToolCallingAgent([TOOL], model(key, kind), stream_outputs=stream, verbosity_level=0)
    for number in range(times):
        said = agent.run(say(*steps), reset=number == 0)
    return str(said)


def writing(key: str, stream: bool) -> str:
    agent = CodeAgent([TOOL], model(key, "chat"), stream_outputs=stream, verbosity_level=0)
    looks = "Thought: I look.\n<code>\nprint(weather(place='Berlin'))\n</code>"
    answers = f"Thought: I know.\n<code>\nfinal_answer({ANSWER!r})\n</code>"
    return str(agent.run(say(looks, answers)))


hold(
    tools_whole=lambda key: calling(key, "chat", False, [BERLIN], [FINAL]),
    tools_stream=lambda key: calling(key, "chat", True, [BERLIN], [FINAL]),
    tools_two_steps=lambda key: calling(key, "chat", False, [BERLIN], [ROME], [FINAL]),
    tools_parallel=lambda key: calling(key, "chat", False, [BERLIN, ROME], [FINAL]),
    tools_twice=lambda key: calling(key, "chat", False, [BERLIN], [FINAL], times=2),
    tools_anthropic=lambda key: calling(key, "litellm", False, [BERLIN], [FINAL]),
    code_whole=lambda key: writing(key, False),
    code_stream=lambda key: writing(key, True),
)
