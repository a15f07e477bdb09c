"""Faults of other libraries that users reported in public, each tried here through the proxy."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from agentrl import Episode
from agentrl.engine.client import sglang_engine
from agentrl.envs import Result, ToolEnv, tool
from agentrl.proxy import ChatFormat, Proxy, SamplingDefaults, Session, load_chat_format, open_proxy
from agentrl.rollout.run_episode import local_runner
from agentrl.rollout.workflow import Workflow
from agentrl.store.outcome import Outcome
from agentrl.system.tasks import in_thread
from tests.policy_by_prompt import PolicyByPrompt
from tests.record_invariant import assert_record_is_what_the_engine_saw
from tests.scripted_engine import ScriptedEngine
from tests.template_model import model_with_template

pytestmark = pytest.mark.anyio
USER: dict[str, Any] = {"role": "user", "content": "1 + 1 ="}
LONG = {**USER, "content": "1 " * 200}
ADD: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
STRIPS_THOUGHTS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{{ message.content.split('</think>')[-1].lstrip() }}{% else %}{{ message.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Qwen3's template does with all turns but the last."""


@asynccontextmanager
async def asking(chat_format: ChatFormat, *replies: str) -> AsyncIterator[tuple[Session, openai.AsyncOpenAI]]:
    """A session, and a client of it; the model says `replies` one after the other. At the end the record is what it saw."""
    left = list(replies)
    engine = PolicyByPrompt(chat_format, lambda prompt: left.pop(0))
    async with open_proxy(engine, chat_format, "nano") as proxy:
        session = proxy.open_session()
        async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key=session.key, max_retries=0) as client:
            yield session, client
    assert_record_is_what_the_engine_saw(session.record, engine.calls)


async def said(client: openai.AsyncOpenAI, messages: Sequence[Any], **options: Any) -> dict[str, Any]:
    reply = await client.chat.completions.create(model="nano", messages=messages, **options)
    return reply.choices[0].message.model_dump(exclude_none=True)


async def outcome_of(workflow: Workflow, proxy: Proxy, max_tokens: int | None = None) -> Outcome:
    async with local_runner(workflow, proxy, timeout_s=60, defaults=SamplingDefaults(max_tokens=max_tokens)) as runner:
        return await runner.run({}, 0)


@pytest.mark.parametrize("renderer", ["default", "qwen3"])
async def test_a_thought_that_the_template_strips_from_history_is_in_the_recorded_ids_or_a_new_branch_begins(
    renderer: str, tmp_path: Path
) -> None:
    folder = model_with_template(tmp_path / "model", STRIPS_THOUGHTS)
    chat_format = await in_thread(lambda: load_chat_format(folder, renderer))
    async with asking(chat_format, "<think>\nI add.\n</think>\n\n2", "2") as (session, client):
        history = [USER, await said(client, [USER]), USER]
        await said(client, history)
    first, second = session.record.turns
    if renderer == "qwen3":
        assert second.parent is first
        assert "I add." in chat_format.decode(second.token_ids())
    else:
        assert second.parent is None
        assert second.prompt_ids == chat_format.render(history, None).ids


@pytest.mark.parametrize("arguments", [{"a": 1}, '{"a": 1}', '{ "a":1 }'], ids=["object", "text", "other spaces"])
async def test_arguments_of_a_call_come_back_as_an_object_or_as_text(arguments: Any, nano_format: ChatFormat) -> None:
    async with asking(nano_format, CALL, "2") as (session, client):
        message = await said(client, [USER], tools=[ADD])
        message["tool_calls"][0]["function"]["arguments"] = arguments
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "2"}
        await said(client, [USER, message, result], tools=[ADD])
    first, second = session.record.turns
    assert second.parent is first


class Adding(ToolEnv):
    """Answered with "2", it earns 1."""

    def on_reset(self, task: Any) -> str:
        return "1 + 1 ="

    @tool
    def add(self, a: int) -> str:
        """Add 1.

        Args:
            a: The number.
        """
        return str(a + 1)

    def on_answer(self, content: str) -> Result:
        return Result(reward=float(content == "2"), done=True)


@pytest.mark.parametrize(
    "arguments",
    ['{"a": 1', '{"a": one}', '{"a": 1}}', '{"a": [[[', '"a"', "{'a': 1}", '{"a": %s}' % ("9" * 5000)],
    ids=["no brace", "no JSON", "a brace too many", "cut off", "no object", "Python", "5,000 digits"],
)
async def test_a_malformed_call_is_answered_and_the_episode_goes_on(arguments: str, nano_format: ChatFormat) -> None:
    async def run(episode: Episode) -> float:
        return await episode.env(Adding).play(episode)

    malformed = f'<tool_call>\n{{"name": "add", "arguments": {arguments}}}\n</tool_call>'
    left = [malformed, CALL, "2"]
    chat_format = replace(nano_format, context_length=20_000)
    engine = PolicyByPrompt(chat_format, lambda prompt: left.pop(0))
    async with open_proxy(engine, chat_format, "nano") as proxy:
        outcome = await outcome_of(run, proxy)
    assert (outcome.reason, outcome.error) == ("finished", None)
    assert_record_is_what_the_engine_saw(outcome.record, engine.calls)
    (leaf,) = outcome.record.leaves()
    assert (outcome.reward, outcome.metrics["failed_turns"]) == (1.0, 1.0)
    assert "error: " in chat_format.decode(leaf.token_ids())


async def test_the_token_that_ends_a_reply_is_one_of_its_recorded_ids(server_url: str, nano_format: ChatFormat) -> None:
    async with sglang_engine([server_url]) as engine, open_proxy(engine, nano_format, "nano") as proxy:
        session = proxy.open_session()
        end = nano_format.stop_token_ids[0]
        async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key=session.key, max_retries=0) as client:
            message = await said(client, [USER], logit_bias={str(end): 100})
    (turn,) = session.record.turns
    assert (turn.output_ids, message.get("content")) == ([end], "")


@pytest.mark.parametrize(("reply", "trained"), [((11, 12), True), ((11, 500), False)], ids=["words", "no word"])
async def test_a_reply_with_an_id_that_the_tokenizer_has_no_word_for_is_recorded_and_not_trained_on(
    reply: Sequence[int], trained: bool, nano_format: ChatFormat
) -> None:
    """An output layer is padded to a multiple of 64 rows, or of 128; those beyond the vocabulary were never trained."""
    engine = ScriptedEngine(reply=reply, vocabulary=512)
    async with open_proxy(engine, nano_format, "nano") as proxy:
        session = proxy.open_session()
        async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key=session.key, max_retries=0) as client:
            message = await said(client, [USER])
            await said(client, [USER, message, USER])
    first, second = session.record.turns
    assert (first.output_ids, second.parent) == ([*reply], first)
    assert first.trained is second.trained is trained


@pytest.mark.parametrize("handled", [False, True])
async def test_a_conversation_that_outgrows_the_context_ends_its_episode_as_truncated(
    handled: bool, nano_format: ChatFormat
) -> None:
    async def run(episode: Episode) -> float:
        messages: list[Any] = [USER]
        while True:
            try:
                reply = await episode.client.chat.completions.create(model=episode.model, messages=messages)
            except openai.BadRequestError as error:
                if not handled or error.code != "context_length_exceeded":
                    raise
                return 0.5
            messages += [reply.choices[0].message.model_dump(exclude_none=True), USER]

    async with open_proxy(ScriptedEngine(), replace(nano_format, context_length=100), "nano") as proxy:
        outcome = await outcome_of(run, proxy, max_tokens=3)
    turns = outcome.record.turns
    assert (outcome.reason, outcome.reward, len(turns) > 2) == ("finished", 0.5 if handled else 0.0, True)
    if not handled:
        assert outcome.metrics == {"truncated": 1.0}
        assert [turn.truncated for turn in turns] == [False] * (len(turns) - 1) + [True]


@pytest.mark.parametrize(("said", "reason", "truncated"), [([USER, LONG], "finished", 1.0), ([LONG], "error", None)])
async def test_with_any_client_it_is_truncated_and_a_first_prompt_that_is_too_long_fails(
    said: list[Any], reason: str, truncated: float | None, nano_format: ChatFormat
) -> None:
    async def run(episode: Episode) -> float:
        async with anthropic.AsyncAnthropic(base_url=episode.base_url[:-3], api_key=episode.api_key) as client:
            for message in said:
                await client.messages.create(model="any", max_tokens=3, messages=[message])
        return 1.0

    async with open_proxy(ScriptedEngine(), replace(nano_format, context_length=100), "nano") as proxy:
        outcome = await outcome_of(run, proxy)
    assert (outcome.reason, outcome.metrics.get("truncated")) == (reason, truncated)


async def test_nulls_that_pad_the_schema_of_a_tool_are_not_shown_to_the_model(nano_format: ChatFormat) -> None:
    """`datasets` and `model_dump()` write every key that any row has."""
    number = {"type": "integer", "enum": None, "anyOf": None, "default": None}
    properties = {"a": number, "b": None}
    padded = {"name": "add", "strict": None, "parameters": {"type": "object", "properties": properties, "$defs": None}}
    async with asking(nano_format, CALL) as (session, client):
        message = await said(client, [USER], tools=[{"type": "function", "function": padded, "cache": None}])
    (turn,) = session.record.turns
    shown = nano_format.decode(turn.prompt_ids)
    assert '"properties": {"a": {"type": "integer", "default": null}}}' in shown
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
