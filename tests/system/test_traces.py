"""Spans: what an episode leaves in a trace, whose trace a call belongs to, and what happens without a collector."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from agentrl import Episode
from agentrl.config import RunConfig
from agentrl.engine.client import sglang_engine
from agentrl.envs import ToolEnv, tool
from agentrl.errors import ToolCallError
from agentrl.proxy import ChatFormat, open_proxy
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.run_episode import local_runner
from agentrl.sandboxes import BackendName, IOTest
from agentrl.system import traces
from agentrl.workflows import black_box
from tests.engine.scripted_server import scripted_server, sound_states
from tests.instant_engine import InstantEngine
from tests.policy_by_prompt import PolicyByPrompt

pytestmark = pytest.mark.anyio
PARENT = f"{'a' * 32}-{'b' * 16}"
HELLO: Any = [{"role": "user", "content": "1 + 1 ="}]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Everything that ends in a span from now on, in this process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(traces, "tracer", provider.get_tracer("agentrl"))
    yield exporter
    provider.shutdown()


def name_of(context: SpanContext | None) -> str:
    """How `traceparent` names a span, between the version and the flags."""
    assert context is not None
    return f"{context.trace_id:032x}-{context.span_id:016x}"


def tree(ended: Sequence[ReadableSpan], parent: int | None = None, depth: int = 0) -> list[str]:
    """The names of spans, in the order of their beginnings, each indented by how deep it is."""
    lines: list[str] = []
    for one in sorted(ended, key=lambda span: span.start_time or 0):
        if (one.parent.span_id if one.parent else None) == parent:
            assert one.context is not None
            lines += [f"{'  ' * depth}{one.name}", *tree(ended, one.context.span_id, depth + 1)]
    return lines


class Dictionary(ToolEnv):
    def on_reset(self, task: Any) -> str:
        return "What is a quark? Look it up."

    @tool
    async def look_up(self, word: str) -> str:
        """Look a word up.

        Args:
            word: The word.
        """
        if word != "quark":
            raise ToolCallError(f"there is no {word}")
        return "a particle"

    def on_answer(self, content: str) -> float:
        return 1.0


async def looks_up(episode: Episode) -> float:
    played = await episode.env(Dictionary).play(episode)
    verdict = await episode.grade("print(3)", [IOTest(stdout="3")])
    return played * verdict.reward


def called(word: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'look_up', 'arguments': {'word': word}})}\n</tool_call>"


async def test_an_episode_is_a_tree_of_its_model_calls_tools_and_grading(
    spans: InMemorySpanExporter, nano_format: ChatFormat, bubblewrap: BackendName
) -> None:
    replies = [called("quark"), "a particle"]
    config = RunConfig.model_validate({"sandbox": {"backend": bubblewrap}})
    async with (
        open_proxy(PolicyByPrompt(nano_format, lambda _: replies.pop(0)), nano_format, "nano") as proxy,
        open_run_sandboxes(config) as sandboxes,
        local_runner(looks_up, proxy, timeout_s=60, sandboxes=sandboxes) as runner,
    ):
        outcome = await runner.run({}, 7)
    assert outcome.reward == 1.0, outcome.error
    ended = spans.get_finished_spans()
    assert tree(ended) == [
        "invoke_agent looks_up",
        "  chat nano",
        "  execute_tool look_up",
        "  chat nano",
        "  grading",
        "    sandbox run",
    ]
    first, second = [dict(one.attributes or {}) for one in ended if one.name == "chat nano"]
    calls = outcome.record.turns
    assert first == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "agentrl",
        "gen_ai.request.model": "nano",
        "gen_ai.response.id": calls[0].completion_id,
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": len(calls[0].prompt_ids),
        "gen_ai.usage.output_tokens": len(calls[0].output_ids),
        "gen_ai.usage.cache_read.input_tokens": 0,
        "agentrl.version.oldest": 0,
        "agentrl.version.newest": 0,
    }
    assert second["gen_ai.response.finish_reasons"] == ("stop",)
    by_name = {one.name: dict(one.attributes or {}) for one in ended}
    assert by_name["invoke_agent looks_up"] == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "looks_up",
        "gen_ai.provider.name": "agentrl",
        "gen_ai.request.model": "nano",
        "agentrl.seed": 7,
        "agentrl.group_seed": 7,
        "agentrl.reason": "finished",
        "agentrl.reward": 1.0,
    }
    assert by_name["execute_tool look_up"]["gen_ai.tool.name"] == "look_up"
    assert by_name["grading"] == {
        "agentrl.grading.tests": 1,
        "agentrl.grading.status": "passed",
        "agentrl.grading.pass_rate": 1.0,
    }
    assert by_name["sandbox run"]["process.exit.code"] == 0


async def test_a_failure_marks_its_span_with_its_kind_and_nothing_that_was_said(
    spans: InMemorySpanExporter, nano_format: ChatFormat
) -> None:
    async def fails(episode: Episode) -> float:
        await episode.env(Dictionary).play(episode)
        raise LookupError("a secret")

    replies = [called("a secret"), "I give up"]
    async with (
        open_proxy(PolicyByPrompt(nano_format, lambda _: replies.pop(0)), nano_format, "nano") as proxy,
        local_runner(fails, proxy, timeout_s=60) as runner,
    ):
        await runner.run({}, 0)
    ended = {one.name: one for one in spans.get_finished_spans()}
    failed = {name: (one.attributes or {})["error.type"] for name, one in ended.items() if not one.status.is_ok}
    assert failed == {"execute_tool look_up": "ToolCallError", "invoke_agent fails": "error"}
    assert not [name for name, one in ended.items() if "a secret" in one.to_json()]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_belongs_to_the_trace_that_its_request_names_else_to_its_episode_and_so_does_the_engines_work(
    spans: InMemorySpanExporter, nano_format: ChatFormat, stream: bool
) -> None:
    async with (
        scripted_server(lambda body: list(sound_states(3, prompt_tokens=len(body["input_ids"])))) as server,
        sglang_engine([server.url]) as engine,
        open_proxy(engine, nano_format, "nano") as proxy,
    ):
        with traces.span("episode") as episode:
            session = proxy.open_session()
        async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key=session.key) as client:
            for extra in ({"traceparent": f"00-{PARENT}-01"}, {}):
                reply = await client.chat.completions.create(
                    model="nano", messages=HELLO, extra_headers=extra, stream=stream
                )
                if stream:
                    assert [chunk async for chunk in reply]
    _, named, unnamed = spans.get_finished_spans()
    assert [name_of(named.parent), name_of(unnamed.parent)] == [PARENT, name_of(episode.get_span_context())]
    assert [str(one)[3:-3] for one in server.traceparents] == [name_of(named.context), name_of(unnamed.context)]


async def test_a_program_that_is_an_agent_finds_its_episode_in_traceparent(
    spans: InMemorySpanExporter, nano_format: ChatFormat, tmp_path: Path
) -> None:
    command = ["sh", "-c", f'printf %s "$TRACEPARENT" > {tmp_path / "seen"}']
    task = {"command": command, "prompt": "Capital?", "answer": "Paris"}
    async with (
        open_proxy(InstantEngine(), nano_format, "nano") as proxy,
        local_runner(black_box.run, proxy, timeout_s=60) as runner,
    ):
        await runner.run(task, 0)
    (episode,) = spans.get_finished_spans()
    assert episode.name == "invoke_agent black_box"
    assert (tmp_path / "seen").read_text()[3:-3] == name_of(episode.context)


async def test_nothing_is_recorded_or_handed_on_unless_it_is_asked_for(nano_format: ChatFormat) -> None:
    async def asks(episode: Episode) -> float:
        await episode.client.chat.completions.create(model=episode.model, messages=HELLO)
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert traces.variables() == {}
        return 1.0

    async with (
        scripted_server(lambda body: list(sound_states(3, prompt_tokens=len(body["input_ids"])))) as server,
        sglang_engine([server.url]) as engine,
        open_proxy(engine, nano_format, "nano") as proxy,
        local_runner(asks, proxy, timeout_s=60) as runner,
    ):
        outcome = await runner.run({}, 0)
    assert outcome.finished, outcome.error
    assert server.traceparents == [None]


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delitem(sys.modules, "agentrl.system.trace_export", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    traces.begin_traces()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.endswith("which the extra `otel` brings: pip install -e '/path/to/agentrl[otel]'")


PROGRAM = """
import time
from agentrl.system import traces
from agentrl.system.event_loop import end_process
traces.begin_traces()
for number in range(3000):  # more than wait in the queue, in more than one batch
    with traces.span("one"):
        pass
print("went on", flush=True)
end_process(0)
"""


def test_a_collector_that_is_not_there_is_said_and_keeps_nothing_from_going_on() -> None:
    env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "0.1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert done.stderr.count("traces are lost: http://127.0.0.1:9/v1/traces does not take them") == 1
    assert len(done.stderr.splitlines()) == 1
