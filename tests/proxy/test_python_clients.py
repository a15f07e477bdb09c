"""Python clients, unmodified, as programs of their own: each conversation ends as the trajectories that it should.

`scripts/install_clients.sh` installs them; the SDKs that agentrl's own tests use are taken from its environment. `docs/clients.md` tells what is shown here.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.proxy import ChatFormat, open_proxy
from agentrl.record.tokens import Generation
from tests.components import missing
from tests.policy_by_prompt import PolicyByPrompt
from tests.proxy.conformance.plans import SPEAKS, planned
from tests.proxy.conformance.recording import Recorder
from tests.record_invariant import assert_record_is_what_the_engine_saw

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CLIENTS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl" / "clients"
PROGRAMS = Path(__file__).parent / "python_clients"
VERSIONS = Path(__file__).parents[2] / "scripts" / "clients_versions.txt"
TIMEOUT_S = 150
ANSWER = "The answer is 42."

Shape = tuple[int, int]
"""Roots and leaves of a conversation."""
ONE: Shape = (1, 1)


@dataclass(frozen=True)
class Program:
    """A client's program. Its conversations are named by their dialect and what they do."""

    package: str
    conversations: dict[str, Shape]
    decide: Callable[[str], str] | None = None
    """What the model says where no message has a plan."""
    of_tests: bool = False
    """Whether agentrl's own environment has the client, which the tests use."""


PROGRAM_OF = {
    "openai": Program(
        "openai",
        {
            "chat_whole": ONE,
            "chat_stream": ONE,
            "chat_two_steps": ONE,
            "chat_parallel": ONE,
            "chat_parsed": ONE,
            "chat_json_object": ONE,
            "chat_json_schema": ONE,
            "chat_options": ONE,
            "chat_choices": ONE,
            "responses_whole": ONE,
            "responses_stream": ONE,
            "responses_two_steps": ONE,
            "responses_parallel": ONE,
            "responses_parsed": ONE,
            "responses_choices": ONE,
            "stored": ONE,
            "thinking": ONE,
            "completions": ONE,
            "models": ONE,
            "at_once": ONE,
        },
        of_tests=True,
    ),
    "anthropic": Program(
        "anthropic",
        {
            "whole": ONE,
            "stream": ONE,
            "two_steps": ONE,
            "parallel": ONE,
            "runner_whole": ONE,
            "runner_stream": ONE,
            "parsed": ONE,
            "choices": ONE,
            "options": ONE,
            "counted": ONE,
            "prefilled": ONE,
            "thinking": ONE,
            "parts": ONE,
            "models": ONE,
            "asynchronous": ONE,
        },
        of_tests=True,
    ),
}


class PolicyOfSessions(PolicyByPrompt):
    """It remembers what each session was answered."""

    def __init__(self, *about: Any, **options: Any) -> None:
        super().__init__(*about, **options)
        self.of_session: defaultdict[str, list[tuple[list[int], Generation]]] = defaultdict(list)

    async def answer(self, input_ids: list[int], sampling: Sampling, session: str, *others: Any) -> Generation:
        generation = await super().answer(input_ids, sampling, session, *others)
        self.of_session[session].append(self.calls[-1])
        return generation


def continuing(decide: Callable[[str], str]) -> Callable[[str], str]:
    """A policy that goes on from what its turn begins with, such as the call of a tool that is asked for."""

    def reply(prompt: str) -> str:
        _, _, begun = prompt.rpartition(SPEAKS)
        said = decide(prompt)
        return said.removeprefix(begun.strip("\n"))

    return reply


def unplanned(prompt: str) -> str:
    raise AssertionError(f"no plan in {prompt[-2000:]}")


def python_and_version(program: Program) -> tuple[str, str]:
    """The Python that has a client, and the client's version."""
    if program.of_tests:
        return sys.executable, importlib.metadata.version(program.package)
    versions = VERSIONS.read_text()
    stamp = CLIENTS / "installed"
    if not stamp.exists() or stamp.read_text() != versions:
        missing(f"the clients of {VERSIONS.name} are not installed in {CLIENTS}; scripts/install_clients.sh installs them")
    (version,) = re.findall(rf"^{program.package}==(\S+)$", versions, re.MULTILINE)
    return str(CLIENTS / "bin" / "python"), version


async def run(python: str, script: str, home: Path, **environment: str) -> dict[str, str]:
    """What a program said of each of its conversations. It fails the test when it fails, or takes too long."""
    with anyio.fail_after(TIMEOUT_S):
        done = await anyio.run_process(
            [python, "-W", "ignore", str(PROGRAMS / f"{script}.py")],
            cwd=home,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1", **environment},
            check=False,
        )
    text = done.stdout.decode()
    assert done.returncode == 0, (text + done.stderr.decode())[-6000:]
    said: dict[str, str] = json.loads(text.splitlines()[-1])
    return said


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", PROGRAM_OF)
async def test_a_python_client(name: str, nano_format: ChatFormat, tmp_path: Path) -> None:
    program = PROGRAM_OF[name]
    python, version = await in_thread(python_and_version, program)
    chat_format = ChatFormat(nano_format.tokenizer, nano_format.renderer, 4_000_000)
    recorder = Recorder(name, version)
    policy = recorder.saying(continuing(planned(program.decide or unplanned)))
    engine = PolicyOfSessions(chat_format, policy, has_grammar=True)
    async with open_proxy(engine, chat_format, "nano", training=True, middleware=recorder.around) as proxy:
        sessions = {conversation: proxy.open_session() for conversation in program.conversations}
        keys = json.dumps({conversation: session.key for conversation, session in sessions.items()})
        said = await run(python, f"with_{name.replace('-', '_')}", tmp_path, URL=proxy.url, KEYS=keys)
    await recorder.save()
    assert {conversation: ANSWER in answer for conversation, answer in said.items()} == dict.fromkeys(sessions, True), said
    shapes: dict[str, Any] = {}
    for conversation, session in sessions.items():
        assert_record_is_what_the_engine_saw(session.record, engine.of_session[session.key])
        roots = sum(turn.parent is None for turn in session.record.turns)
        shapes[conversation] = (roots, len(session.record.leaves()))
    assert shapes == program.conversations
