"""Python clients, unmodified, as programs of their own: each conversation ends as the trajectories that it should.

`scripts/install_clients.sh` installs them; the SDKs that agentrl's own tests use are taken from its environment. `docs/api.md` tells what is shown here.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.engine.protocol import Sampling
from agentrl.proxy import ChatFormat, open_proxy
from agentrl.record.tokens import Generation
from tests.components import missing
from tests.policy_by_prompt import PolicyByPrompt
from tests.proxy.conformance.recording import Recorder
from tests.record_invariant import assert_record_is_what_the_engine_saw

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl"
PROGRAMS = Path(__file__).parent / "python_clients"
VERSIONS = Path(__file__).parents[2] / "scripts"
OPENAI_2, OPENAI_3, MORE, AIDER = "clients_of_openai_2", "clients_of_openai_3", "clients_more", "clients_aider"
"""Environments of `scripts/install_clients.sh`."""
TIMEOUT_S = 150
ANSWER = "The answer is 42."
MARK = "#plan "
SPEAKS = "<|im_start|>assistant"

Shape = tuple[int, int]
"""Roots and leaves of a conversation."""


@dataclass(frozen=True)
class Program:
    """A client's program, `python_clients/with_CLIENT.py`."""

    package: str
    one: str
    """Names of its conversations with one root and one leaf, each of which goes on from the last."""
    others: dict[str, Shape] = field(default_factory=dict)
    """Those with calls that share no conversation, and those whose history the client rewrites."""
    decide: Callable[[str], str] | None = None
    """What the model says where no message has a plan."""
    environment: str | None = OPENAI_3
    """Which of those that are installed has the client; None: agentrl's own, since other tests use it too."""

    @property
    def shapes(self) -> dict[str, Shape]:
        return {**dict.fromkeys(self.one.split(), (1, 1)), **self.others}


def fields_of_dspy(prompt: str) -> str:
    """A reply in the form that DSPy asks for: it looks once, and then answers."""
    asked = prompt[prompt.rfind("<|im_start|>user") :]
    if "next_tool_name" in asked:
        name, arguments = ("finish", {}) if "observation_0" in asked else ("weather", {"place": "Berlin"})
        values = {"next_thought": "I look.", "next_tool_name": name, "next_tool_args": json.dumps(arguments)}
    elif "reasoning" in asked:
        values = {"reasoning": "I know.", "answer": ANSWER}
    else:
        values = {"answer": ANSWER}
    if "JSON object" in asked:
        return json.dumps(values)
    return "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in {**values, "completed": ""}.items())


def greeting(prompt: str) -> str:
    """A reply to inspect-ai, which says hello to an API of responses first, to see whether it is there."""
    assert "Please say 'hello, world'" in prompt
    return "hello, world"


def mending(prompt: str) -> str:
    """A reply to aider: an edit in the format that it asks for, or a line for its commit."""
    asked = prompt[prompt.rfind("<|im_start|>user") :]
    if "one-line" in prompt and "commit" in prompt[:2000].lower():
        return "fix: add() adds"
    is_bad = "badly" in prompt and "AssertionError" not in prompt
    old, new = ("a * b" if "AssertionError" in prompt else "a - b"), ("a * b" if is_bad else "a + b")
    if "architect" in prompt[:600]:
        return f"In calc.py, `return {old}` becomes `return {new}`."
    if "SEARCH/REPLACE" in prompt:
        return (
            f"calc.py\n```python\n<<<<<<< SEARCH\n    return {old}\n=======\n    return {new}\n>>>>>>> REPLACE\n```\n"
        )
    if "diff -U0" in prompt:
        return f"```diff\n--- calc.py\n+++ calc.py\n@@ ... @@\n def add(a, b):\n-    return {old}\n+    return {new}\n```\n"
    assert "file listing" in prompt, asked
    return f"calc.py\n```\ndef add(a, b):\n    return {new}\n```\n"


def handing_over(prompt: str) -> str:
    """A reply of ADK's agent, which hands over to its sub-agent, and of that one."""
    if "You look." in prompt:
        return ANSWER
    return '<tool_call>\n{"name": "transfer_to_agent", "arguments": {"agent_name": "sky"}}\n</tool_call>'


OF_INSPECT = ("whole", "two_steps", "parallel", "loop", "structured", "forced", "thinking")
IN_EACH = "whole stream parallel output_by_tool memory thinking native_output"
PROGRAM_OF = {
    "openai": Program(
        "openai",
        "chat_whole chat_stream chat_two_steps chat_parallel chat_parsed chat_json_object chat_json_schema"
        " responses_whole responses_stream responses_two_steps responses_parallel responses_parsed models",
        {
            "chat_options": (8, 8),
            "chat_choices": (4, 4),
            "responses_choices": (4, 4),
            "stored": (1, 1),
            "thinking": (2, 2),
            "completions": (6, 6),
            "at_once": (2, 2),
        },
        environment=None,
    ),
    "anthropic": Program(
        "anthropic",
        "whole stream two_steps parallel runner_whole runner_stream parsed prefilled thinking parts models asynchronous",
        {"choices": (3, 3), "options": (4, 4), "counted": (1, 1)},
        environment=None,
    ),
    "google-genai": Program(
        "google-genai",
        "chat_whole chat_stream chat_two_steps chat_parallel by_hand_whole by_hand_stream thinking counted listed asynchronous",
        {"structured": (2, 2), "options": (3, 3), "choices": (3, 3)},
        environment=None,
    ),
    "openai-agents": Program(
        "openai-agents",
        "chat_whole chat_stream chat_parallel chat_required chat_structured chat_memory responses_whole responses_stream"
        " responses_parallel responses_required responses_structured",
        {"responses_handoff": (2, 2)},
        environment=None,
    ),
    "langgraph": Program(
        "langgraph",
        "chat_whole chat_stream chat_parallel chat_graph chat_structured chat_json_mode chat_structured_by_tool"
        " chat_response_format responses_whole responses_stream responses_parallel responses_structured responses_thinking"
        " anthropic_whole anthropic_stream anthropic_parallel anthropic_response_format anthropic_structured_by_tool"
        " anthropic_thinking google_whole google_stream google_parallel",
        {"chat_batch": (2, 2)},
        environment=OPENAI_2,
    ),
    "pydantic-ai": Program(
        "pydantic-ai-slim",
        " ".join(
            f"{model}_{name}" for model in ("chat", "responses", "anthropic", "google") for name in IN_EACH.split()
        )
        + " chat_prompted_output",
    ),
    "litellm": Program(
        "litellm",
        " ".join(
            f"{model}_{name}"
            for model in ("chat", "anthropic", "google", "responses")
            for name in ["whole", "stream", "parallel", "structured", "required", "thinking"]
        )
        + " asynchronous responses_api text_completion",
        {"options": (3, 3)},
    ),
    "llama-index": Program(
        "llama-index-core",
        " ".join(
            f"{model}_{name}"
            for model in ("chat", "responses", "anthropic", "like")
            for name in ["agent", "agent_whole", "parallel", "structured", "twice"]
        ),
        {"react": (2, 2)},
        environment=OPENAI_2,
    ),
    "instructor": Program(
        "instructor",
        "chat_tools chat_tools_again chat_tools_strict chat_json chat_json_again chat_json_schema chat_md_json chat_several"
        " responses_tools anthropic_tools anthropic_tools_again anthropic_json chat_partial responses_partial anthropic_partial",
        environment=OPENAI_2,
    ),
    "autogen": Program(
        "autogen-agentchat",
        "chat_whole chat_stream chat_parallel chat_structured anthropic_whole anthropic_stream anthropic_parallel",
        {"chat_twice": (2, 2), "chat_team": (2, 2)},
        environment=OPENAI_2,
    ),
    "smolagents": Program(
        "smolagents",
        "",
        {
            **dict.fromkeys(("tools_whole", "tools_stream", "tools_parallel", "tools_anthropic"), (2, 2)),
            **dict.fromkeys(("code_whole", "code_stream"), (2, 2)),
            "tools_two_steps": (3, 3),
            "tools_twice": (4, 4),
        },
    ),
    "dspy": Program(
        "dspy",
        "chat_predict chat_thought chat_json chat_history responses_predict",
        {"chat_agent": (3, 3), "anthropic_agent": (3, 3)},
        decide=fields_of_dspy,
    ),
    "inspect-ai": Program(
        "inspect-ai",
        " ".join(f"{model}_{name}" for model in ("chat", "anthropic", "google") for name in OF_INSPECT)
        + " anthropic_cached",
        {
            **dict.fromkeys((f"responses_{name}" for name in OF_INSPECT), (2, 2)),
            "chat_thinking": (2, 2),
            "chat_options": (2, 2),
        },
        decide=greeting,
    ),
    "agno": Program(
        "agno",
        " ".join(
            f"{model}_{name}"
            for model in ("chat", "responses", "anthropic", "google")
            for name in ["whole", "stream", "parallel", "memory", "structured", "thinking"]
        ),
        environment=MORE,
    ),
    "google-adk": Program(
        "google-adk",
        "whole stream two_steps parallel parallel_stream memory thinking structured",
        {"handed_over": (2, 2)},
        decide=handing_over,
        environment=MORE,
    ),
    "strands": Program(
        "strands-agents",
        " ".join(
            f"{model}_{name}"
            for model in ("chat", "whole", "responses", "anthropic", "google")
            for name in ["one", "two_steps", "parallel", "memory", "thinking", "structured"]
        )
        + " chat_parsed",
        environment=MORE,
    ),
    "haystack": Program(
        "haystack-ai",
        " ".join(
            f"{model}_{name}"
            for model in ("chat", "responses")
            for name in ["whole", "stream", "parallel", "memory", "thinking", "structured"]
        ),
        environment=MORE,
    ),
    "llm": Program(
        "llm",
        "whole stream parallel memory thinking asynchronous structured program program_whole",
        environment=MORE,
    ),
    "aider": Program(
        "aider-chat",
        "",
        {
            **dict.fromkeys(("diff_stream", "diff_whole", "whole_file", "udiff"), (2, 2)),
            "architect": (3, 3),
            "tests_fail": (4, 4),
        },
        decide=mending,
        environment=AIDER,
    ),
    "mini-swe-agent": Program("mini-swe-agent", "chat chat_three_steps anthropic"),
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


def planned(otherwise: Callable[[str], str]) -> Callable[[str], str]:
    """A policy that does what the last message with a plan tells it (`asking.say`), step by step, and replies as `otherwise` does where there is none."""

    def reply(prompt: str) -> str:
        begins = prompt.rfind(MARK)
        if begins < 0:
            return otherwise(prompt)
        steps, _ = json.JSONDecoder().raw_decode(prompt[begins + len(MARK) :])
        step = steps[min(prompt.count(SPEAKS, begins), len(steps)) - 1]
        if not isinstance(step, str):
            calls = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in step]
            step = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
        # Where a tool must be called, the turn has begun with the call.
        return str(step).removeprefix(prompt.rpartition(SPEAKS)[2].strip("\n"))

    return reply


def unplanned(prompt: str) -> str:
    raise AssertionError(f"no plan in {prompt[-2000:]}")


def python_and_version(program: Program) -> tuple[str, str]:
    """The Python that has a client, and the client's version."""
    if program.environment is None:
        return sys.executable, importlib.metadata.version(program.package)
    folder, versions = CACHE / program.environment, (VERSIONS / f"{program.environment}.txt").read_text()
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text() != versions:
        missing(f"{program.package} is not installed in {folder}; scripts/install_clients.sh installs it")
    (version,) = re.findall(rf"^{program.package}==(\S+)$", versions, re.MULTILINE)
    return str(folder / "bin" / "python"), version


async def run(python: str, script: str, home: Path, **environment: str) -> tuple[int, str]:
    """How a program ended, and what it printed. It fails the test when it takes too long."""
    with anyio.fail_after(TIMEOUT_S):
        done = await anyio.run_process(
            [python, "-W", "ignore", str(PROGRAMS / f"{script}.py")],
            cwd=home,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1", **environment},
            check=False,
            stderr=subprocess.STDOUT,
        )
    return done.returncode, done.stdout.decode()


IN_GATE = ("openai", "anthropic", "google-genai")
"""The SDKs that speak the five dialects; agentrl's own environment has them. What other clients send is replayed by `test_conformance.py`."""
IN_SOAK = [name for name in PROGRAM_OF if name not in IN_GATE]


@pytest.mark.parametrize(
    "name",
    [*IN_GATE, *(pytest.param(name, marks=[pytest.mark.soak, pytest.mark.timeout(180)]) for name in IN_SOAK)],
)
async def test_a_python_client(name: str, nano_format: ChatFormat, tmp_path: Path) -> None:
    program = PROGRAM_OF[name]
    python, version = await in_thread(python_and_version, program)
    chat_format = ChatFormat(nano_format.tokenizer, nano_format.renderer, 4_000_000)
    recorder = Recorder(name, version)
    policy = recorder.saying(planned(program.decide or unplanned))
    engine = PolicyOfSessions(chat_format, policy, has_grammar=True)
    async with open_proxy(engine, chat_format, "nano", training=True, middleware=recorder.around) as proxy:
        sessions = {conversation: proxy.open_session() for conversation in program.shapes}
        keys = json.dumps({conversation: session.key for conversation, session in sessions.items()})
        code, text = await run(python, f"with_{name.replace('-', '_')}", tmp_path, URL=proxy.url, KEYS=keys)
    await recorder.save()
    assert code == 0, text[-4000:]
    said: dict[str, str] = json.loads(text.splitlines()[-1])
    assert not {conversation: answer for conversation, answer in said.items() if ANSWER not in answer}
    shapes: dict[str, Shape] = {}
    for conversation, session in sessions.items():
        assert_record_is_what_the_engine_saw(session.record, engine.of_session[session.key])
        roots = sum(turn.parent is None for turn in session.record.turns)
        shapes[conversation] = (roots, len(session.record.leaves()))
    others = {each: shape for each, shape in shapes.items() if shape != program.shapes[each]}
    assert not others, json.dumps(others)
