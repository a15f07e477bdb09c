"""Agents that people use, unmodified, as programs of their own: each ends as the trajectories that it should.

`scripts/install_agents.sh` installs them. `docs/api.md` tells what is shown here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from agentrl.proxy import ChatFormat, Proxy, Session, open_proxy
from agentrl.record.conversations import Conversation
from agentrl.rollout.trained_conversations import choose_conversations
from tests.components import missing
from tests.policy_by_prompt import PolicyByPrompt
from tests.proxy.conformance.recording import Recorder
from tests.record_invariant import assert_record_is_what_the_engine_saw

pytestmark = [pytest.mark.anyio, pytest.mark.soak]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl"
AGENTS = CACHE / "agents"
AGENT_SDK = AGENTS / "claude-agent-sdk"
SCRIPTS = Path(__file__).parent / "agents"
TIMEOUT_S = 120
ANSWER = "The answer is 42."
DONE = "sunny in Berlin"
CLAUDE_CODE = ("Claude Code", "@anthropic-ai/claude-code")


@dataclass
class Setup:
    proxy: Proxy
    session: Session
    engine: PolicyByPrompt
    home: Path
    prompts: list[str]
    """Texts of the prompts, as they came."""

    @property
    def environment(self) -> dict[str, str]:
        """What the agent's process has: nothing of the user's own settings."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "URL": self.proxy.url,
            "KEY": self.session.key,
            "NO_PROXY": "127.0.0.1",
        }

    async def run(self, *command: str, cwd: Path | None = None, script: Path | None = None, **extra: str) -> str:
        """What a program printed. It fails the test when it fails, or takes too long."""
        with anyio.fail_after(TIMEOUT_S):
            done = await anyio.run_process(
                command,
                input=script.read_bytes() if script else b"",
                cwd=cwd or self.home,
                env={**self.environment, **extra},
                check=False,
                stderr=subprocess.STDOUT,
            )
        text = done.stdout.decode()
        assert done.returncode == 0, text[-4000:]
        return text

    async def node(self, script: str, folder: Path = AGENTS, **extra: str) -> str:
        """What a script printed that imports the packages installed in a folder."""
        return await self.run("node", "--input-type=module", "-", cwd=folder, script=SCRIPTS / script, **extra)

    def choose(self) -> list[tuple[Conversation, bool | str]]:
        """Choose what is trained on, as at the end of an episode."""
        choices = choose_conversations(self.session.record, "main")
        choices.apply({})
        return list(choices.chosen)

    def check(self, *, roots: int, leaves: int) -> None:
        """Check what was recorded."""
        record = self.session.record
        assert_record_is_what_the_engine_saw(record, self.engine.calls)
        found = sum(turn.parent is None for turn in record.turns), len(record.leaves())
        assert found == (roots, leaves), [len(turn.token_ids()) for turn in record.turns]


def installed(name: str) -> str:
    """Path of an installed agent's program."""
    program = AGENTS / "node_modules" / ".bin" / name
    if not program.exists():
        missing(f"{name} is not installed in {AGENTS}; scripts/install_agents.sh installs it")
    return str(program)


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def policy(prompt: str) -> str:
    """Call a tool once, and then answer; side calls, which have no tools, get a word."""
    spoken = prompt[prompt.rfind("<|im_start|>user") :]
    if "<tool_response>" in spoken:
        return ANSWER if DONE in spoken else "The tool failed."
    if "as JSON" in spoken and not re.search('"name": ?"json"', prompt):
        return '{"answer":42}'
    if "at once" in spoken:
        names = re.findall(r'"name": ?"((?:mcp__sky__)?(?:weather|population))"', prompt)
        return "\n".join(call(name, place="Berlin") for name in names)
    if "Think first" in spoken:
        return "<think>\nI look.\n</think>\n\n" + call("weather", place="Berlin")
    tools: tuple[tuple[str, dict[str, object]], ...] = (
        ("weather", {"place": "Berlin"}),
        ("broken", {"place": "Berlin"}),
        ("json", {"answer": 42}),
        ("Bash", {"command": f"echo {DONE}", "description": "Look"}),
        ("exec_command", {"cmd": f"echo {DONE}"}),
        ("shell_command", {"command": f"echo {DONE}"}),
    )
    for name, arguments in tools:
        if re.search(rf'"name": ?"{name}"', prompt):
            begun = prompt.rpartition("<|im_start|>assistant\n")[2]
            return call(name, **arguments).removeprefix(begun)
    return "Weather"


@asynccontextmanager
async def opened(
    nano_format: ChatFormat,
    home: Path,
    client: str,
    package: str,
    decide: Callable[[str], str] = policy,
    folder: Path = AGENTS,
) -> AsyncIterator[Setup]:
    """A proxy whose policy is `decide`, and a session, for one client, which an npm package installs."""
    version = version_of(package, folder)
    prompts: list[str] = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        return decide(prompt)

    chat_format = ChatFormat(nano_format.tokenizer, nano_format.renderer, 4_000_000)
    recorder = Recorder(client, version)
    engine = PolicyByPrompt(chat_format, recorder.saying(reply), has_grammar=True)
    async with open_proxy(engine, chat_format, "nano", training=True, middleware=recorder.around) as proxy:
        yield Setup(proxy, proxy.open_session(), engine, home, prompts)
    await recorder.save()


def version_of(package: str, folder: Path) -> str:
    """Version of an npm package that is installed in a folder."""
    file = folder / "node_modules" / package / "package.json"
    if shutil.which("node") is None or not file.exists():
        missing(f"the package {package} is not installed in {folder}; scripts/install_agents.sh installs it")
    return str(json.loads(file.read_text())["version"])


async def claude(setup: Setup, question: str) -> str:
    """What Claude Code answered."""
    return await setup.run(
        installed("claude"),
        "-p",
        question,
        "--model",
        "anything",
        "--dangerously-skip-permissions",
        ANTHROPIC_BASE_URL=setup.proxy.url,
        ANTHROPIC_API_KEY=setup.session.key,
        IS_SANDBOX="1",
        DISABLE_AUTOUPDATER="1",
    )


@pytest.mark.timeout(600)
async def test_claude_code(nano_format: ChatFormat, tmp_path: Path) -> None:
    """Beside its conversation it asks for a title, unless it has ended before. That is recorded, and not trained on."""
    for attempt in range(4):
        home = tmp_path / str(attempt)
        await anyio.Path(home).mkdir()
        async with opened(nano_format, home, *CLAUDE_CODE) as setup:
            assert ANSWER in await claude(setup, "What is the weather in Berlin? Use Bash.")
            chosen = setup.choose()
        assert [trained for one, trained in chosen if one.tools] == [True]
        setup.check(roots=len(chosen), leaves=len(chosen))
        if len(chosen) == 2:
            break
    else:
        pytest.fail("it asked for no title in any of its runs")
    (title,) = (one for one, trained in chosen if not trained)
    assert title.tools == ()
    assert [turn.left_out for turn in title.turns] == [True]
    (trained,) = (path for path in setup.session.record.trajectories() if any(path.loss_mask))
    assert trained.token_ids == setup.session.record.leaves()[-1].token_ids()


@pytest.mark.timeout(300)
async def test_a_sub_agent_of_claude_code(nano_format: ChatFormat, tmp_path: Path) -> None:
    report = "It is sunny in Berlin, says the agent."

    def delegating(prompt: str) -> str:
        spoken = prompt[prompt.rfind("<|im_start|>user") :]
        if report in spoken:
            return ANSWER
        if "<tool_response>" in spoken:
            return report
        if "Look at the weather" in spoken:
            return call("Bash", command=f"echo {DONE}", description="Look")
        if '"Agent"' in prompt:
            return call("Agent", description="Weather", prompt="Look at the weather.", subagent_type="general-purpose")
        return "Weather"

    async with opened(nano_format, tmp_path, *CLAUDE_CODE, delegating) as setup:
        assert ANSWER in await claude(setup, "What is the weather in Berlin? Delegate.")
        chosen = setup.choose()
    with_tools = [(one, trained) for one, trained in chosen if one.tools]
    assert [trained for _, trained in with_tools] == [True, False]
    main, sub_agent = (one for one, _ in with_tools)
    assert sub_agent.system != main.system
    assert all(turn.left_out for turn in sub_agent.turns)


CODEX = """
model = "anything"
model_provider = "agentrl"

[model_providers.agentrl]
name = "agentrl"
base_url = "{url}/v1"
env_key = "KEY"
wire_api = "responses"
"""


async def test_codex(nano_format: ChatFormat, tmp_path: Path) -> None:
    program = installed("codex")
    async with opened(nano_format, tmp_path, "Codex", "@openai/codex") as setup:
        (setup.home / ".codex").mkdir()
        (setup.home / ".codex" / "config.toml").write_text(CODEX.format(url=setup.proxy.url))
        said = await setup.run(
            program,
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            "What is the weather in Berlin?",
        )
        assert ANSWER in said
        setup.check(roots=1, leaves=1)


VERCEL = {
    "responses": "@ai-sdk/openai",
    "chat": "@ai-sdk/openai",
    "anthropic": "@ai-sdk/anthropic",
    "google": "@ai-sdk/google",
}
SDKS = {
    "anthropic_tool_runner": ("Anthropic for Node", "@anthropic-ai/sdk"),
    "openai_run_tools": ("openai for Node", "openai"),
}


@pytest.mark.parametrize("how", ["whole", "stream"])
@pytest.mark.parametrize("model", VERCEL)
async def test_vercel_ai(nano_format: ChatFormat, tmp_path: Path, model: str, how: str) -> None:
    """A call; two at once, with a question after them that is thought about; a call that must be; a tool that fails; an answer in JSON."""
    async with opened(nano_format, tmp_path, f"Vercel ai with {VERCEL[model]}", "ai") as setup:
        *said, answer = (await setup.node("vercel.mjs", MODEL=model, HOW=how)).splitlines()
        assert said == [ANSWER, ANSWER, ANSWER, "", "The tool failed."]
        assert json.loads(answer) == {"answer": 42}
        setup.check(roots=5, leaves=5)


@pytest.mark.parametrize("how", ["whole", "stream"])
@pytest.mark.parametrize("sdk", SDKS)
async def test_sdks_that_run_the_tools(nano_format: ChatFormat, tmp_path: Path, sdk: str, how: str) -> None:
    async with opened(nano_format, tmp_path, *SDKS[sdk]) as setup:
        assert ANSWER in await setup.node(f"{sdk}.mjs", HOW=how)
        setup.check(roots=1, leaves=1)


@pytest.mark.parametrize("how", ["whole", "stream"])
async def test_chats_of_google_for_node(nano_format: ChatFormat, tmp_path: Path, how: str) -> None:
    """One conversation with one call, and one with two at once."""
    async with opened(nano_format, tmp_path, "google-genai for Node", "@google/genai") as setup:
        assert (await setup.node("google_chats.mjs", HOW=how)).count(ANSWER) == 2
        setup.check(roots=2, leaves=2)
    assert len(setup.session.record.turns) == 4


async def test_claude_agent_sdk(nano_format: ChatFormat, tmp_path: Path) -> None:
    program = installed("claude")
    client = "Claude Agent SDK", "@anthropic-ai/claude-agent-sdk"
    async with opened(nano_format, tmp_path, *client, folder=AGENT_SDK) as setup:
        assert (await setup.node("claude_agent_sdk.mjs", AGENT_SDK, CLAUDE=program)).count(ANSWER) == 2
        chosen = setup.choose()
    assert [trained for one, trained in chosen if one.tools] == [True]
    setup.check(roots=len(chosen), leaves=len(chosen))
