"""The scripted model: replies by turn and by a function, in this process and over the loopback, whole and streamed."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from agentrl import Episode
from agentrl.envs import ToolEnv, tool
from agentrl.testing import Refusal, Request, ScriptedModel, ToolCall, exercise, scripted_episode
from agentrl.testing.exercise import sample
from agentrl.workflows import calculator

pytestmark = pytest.mark.anyio
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


async def test_a_workflow_meets_the_replies_in_turn() -> None:
    model = ScriptedModel(ToolCall("calculator", {"expression": "2 + 3"}), "5")
    async with scripted_episode(model, {"question": "2 + 3 =", "answer": "5"}) as episode:
        assert await calculator.run(episode) == 1.0
        assert dict(episode.metrics) == {"turns": 2.0, "failed_turns": 0.0, "truncated": 0.0}
    assert [len(request["messages"]) for request in model.requests] == [1, 3]
    assert model.requests[0]["tools"][0]["function"]["name"] == "calculator"
    assert model.requests[1]["messages"][-1]["content"] == "5"


async def test_a_function_of_the_request_replies_plain_or_async() -> None:
    async def echo(request: Request) -> str:
        return str(request["messages"][-1]["content"]).upper()

    for script in (echo, lambda request: request["messages"][-1]["content"].upper()):
        async with scripted_episode(ScriptedModel(script)) as episode:
            reply = await episode.client.chat.completions.create(model="m", messages=user("hello"))
            assert reply.choices[0].message.content == "HELLO"


async def test_other_programs_reach_it_over_the_loopback() -> None:
    model = ScriptedModel("one", {"content": "two", "reasoning_content": "because"})
    async with model.serve() as url, openai.AsyncOpenAI(base_url=url, api_key="-") as client:
        for wanted in ("one", "two"):
            reply = await client.chat.completions.create(model="m", messages=user("?"))
            assert reply.choices[0].message.content == wanted
    assert len(model.requests) == 2


async def test_another_dialect_is_refused_with_what_to_do() -> None:
    model = ScriptedModel("hi")
    async with scripted_episode(model) as episode:
        async with openai.AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
            for asked in (client, episode.client):
                with pytest.raises(openai.NotFoundError, match=r"alone, not /v1/responses; try .* nano"):
                    await asked.responses.create(model=episode.model, input="?")
    assert not model.requests


async def test_a_refusal_is_an_http_error_and_clients_try_again_after_it() -> None:
    async with scripted_episode(ScriptedModel(Refusal(429), "later", Refusal(400, "no"))) as episode:
        reply = await episode.client.chat.completions.create(model="m", messages=user("?"))
        assert reply.choices[0].message.content == "later"
        with pytest.raises(openai.BadRequestError, match="no"):
            await episode.client.chat.completions.create(model="m", messages=user("?"))


async def test_what_a_script_raises_is_said_with_its_line() -> None:
    async with scripted_episode(ScriptedModel(lambda request: request["nothing"])) as episode:
        with pytest.raises(openai.BadRequestError, match=r"the script raised KeyError: 'nothing' \(at .*test_scripted"):
            await episode.client.chat.completions.create(model="m", messages=user("?"))


async def test_after_the_last_reply_it_refuses() -> None:
    async with scripted_episode(ScriptedModel("only")) as episode:
        await episode.client.chat.completions.create(model="m", messages=user("?"))
        with pytest.raises(openai.BadRequestError, match="the script has 1 replies, and the model was asked once more"):
            await episode.client.chat.completions.create(model="m", messages=user("?"))


async def test_a_streamed_reply_says_the_same() -> None:
    calls = [ToolCall("look", {"at": 1}), ToolCall("look", "{no JSON")]
    async with scripted_episode(ScriptedModel("text", calls)) as episode:
        for wanted in ("text", None):
            stream = await episode.client.chat.completions.create(
                model="m", messages=user("?"), tools=[TOOL], stream=True
            )
            chunks = [chunk.choices[0] async for chunk in stream]
            assert chunks[0].delta.content == wanted
            assert chunks[-1].finish_reason == ("stop" if wanted else "tool_calls")
            made = [(c.index, c.function and c.function.arguments) for c in chunks[0].delta.tool_calls or ()]
            assert made == ([] if wanted else [(0, '{"at": 1}'), (1, "{no JSON")])


class Opened(ToolEnv):
    """Knows whether it is open."""

    open_now = 0

    def on_reset(self, task: Any) -> str:
        Opened.open_now += 1
        return "Go."

    async def aclose(self) -> None:
        Opened.open_now -= 1

    @tool
    async def fail(self) -> str:
        """Fail."""
        raise ValueError("always")

    def on_answer(self, content: str) -> float:
        return 1.0


async def test_the_environments_of_an_episode_are_closed_with_it() -> None:
    async with scripted_episode(ScriptedModel("x")) as episode:
        await episode.env(Opened).reset()
        assert Opened.open_now == 1
    assert Opened.open_now == 0


# env.play, which the scripted model makes easy to see ------------------------------------------------------------------


async def play(episode: Episode, **options: Any) -> float:
    return await episode.env(Opened).play(episode, **options)


async def test_play_counts_turns_and_failed_turns_and_returns_the_total_reward() -> None:
    async with scripted_episode(ScriptedModel(ToolCall("fail"), ToolCall("nothing"), "done")) as episode:
        assert await play(episode) == 1.0
        assert dict(episode.metrics) == {"turns": 3.0, "failed_turns": 2.0, "truncated": 0.0}


async def test_play_stops_after_max_turns() -> None:
    async with scripted_episode(ScriptedModel(lambda _: ToolCall("fail"))) as episode:
        env = episode.env(Opened)
        assert await env.play(episode, max_turns=2) == 0.0
        assert (env.done, env.truncated, episode.metrics["turns"]) == (True, True, 2.0)


async def test_play_goes_on_from_a_reset_of_the_workflows_own() -> None:
    model = ScriptedModel("done")
    async with scripted_episode(model) as episode:
        env = episode.env(Opened)
        await env.reset()
        env.messages.insert(0, {"role": "system", "content": "Be brief."})
        await env.play(episode)
    assert [m["role"] for m in model.requests[0]["messages"]] == ["system", "user"]


# The exercise ----------------------------------------------------------------------------------------------------------


def test_the_exercise_calls_each_tool_then_wrongly_then_answers() -> None:
    messages: list[Any] = user("?")
    replies = []
    for _ in range(4):
        replies.append(exercise({"messages": messages, "tools": [TOOL]}))
        messages = [*messages, {"role": "assistant"}]
    assert replies == [
        ToolCall("look", {}),
        ToolCall("look", '{"this is no JSON'),
        ToolCall("a_tool_that_does_not_exist", {}),
        "42",
    ]
    assert exercise({"messages": user("?")}) == "42"


def test_samples_are_what_their_schema_allows() -> None:
    import jsonschema

    schema = {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "minimum": 3, "maximum": 5},
            "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            "kind": {"enum": ["a", "b"]},
            "maybe": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
            "many": {"type": "array", "minItems": 2, "items": {"$ref": "#/$defs/Point"}},
            "on": {"type": "boolean"},
        },
        "required": ["count", "share", "kind", "maybe", "many", "on"],
        "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
    }
    jsonschema.validate(sample(schema), schema)
