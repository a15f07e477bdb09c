"""Agents that people use, unmodified, as programs of their own: each ends as the trajectories that it should.

`scripts/install_agents.sh` installs them. `docs/clients.md` tells what is shown here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from agentrl.proxy import ChatFormat, Proxy, Session, open_proxy
from tests.components import missing
from tests.policy_by_prompt import PolicyByPrompt
from tests.record_invariant import assert_record_is_what_the_engine_saw

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl"
AGENTS = CACHE / "agents"
SCRIPTS = Path(__file__).parent / "agents"
TIMEOUT_S = 120
ANSWER = "The answer is 42."
DONE = "sunny in Berlin"


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

    async def node(self, script: str, **extra: str) -> str:
        """What a script printed that imports installed packages."""
        return await self.run("node", "--input-type=module", "-", cwd=AGENTS, script=SCRIPTS / script, **extra)

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


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def policy(prompt: str) -> str:
    """Call a tool once, and then answer; side calls, which have no tools, get a word."""
    spoken = prompt[prompt.rfind("<|im_start|>user") :]
    if "<tool_response>" in spoken:
        return ANSWER if DONE in spoken else "The tool failed."
    for name, arguments in (
        ("weather", {"place": "Berlin"}),
        ("Bash", {"command": f"echo {DONE}", "description": "Look"}),
        ("exec_command", {"cmd": f"echo {DONE}"}),
        ("shell_command", {"command": f"echo {DONE}"}),
    ):
        if re.search(rf'"name": ?"{name}"', prompt):
            return call(name, **arguments)
    return "Weather"


@asynccontextmanager
async def opened(nano_format: ChatFormat, home: Path) -> AsyncIterator[Setup]:
    prompts: list[str] = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        return policy(prompt)

    chat_format = ChatFormat(nano_format.tokenizer, nano_format.renderer, 4_000_000)
    engine = PolicyByPrompt(chat_format, reply, has_grammar=True)
    async with open_proxy(engine, chat_format, "nano", training=True) as proxy:
        yield Setup(proxy, proxy.open_session(), engine, home, prompts)


@pytest.fixture
async def setup(nano_format: ChatFormat, tmp_path: Path) -> AsyncIterator[Setup]:
    async with opened(nano_format, tmp_path) as setup:
        yield setup


async def test_claude_code(setup: Setup) -> None:
    said = await setup.run(
        installed("claude"),
        "-p",
        "What is the weather in Berlin? Use Bash.",
        "--model",
        "anything",
        "--dangerously-skip-permissions",
        ANTHROPIC_BASE_URL=setup.proxy.url,
        ANTHROPIC_API_KEY=setup.session.key,
        IS_SANDBOX="1",
        DISABLE_AUTOUPDATER="1",
    )
    assert ANSWER in said
    # One root is the session's title, which Claude Code asks for beside the conversation.
    setup.check(roots=2, leaves=2)


CODEX = """
model = "anything"
model_provider = "agentrl"

[model_providers.agentrl]
name = "agentrl"
base_url = "{url}/v1"
env_key = "KEY"
wire_api = "responses"
"""


async def test_codex(setup: Setup) -> None:
    program = installed("codex")
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


@pytest.mark.parametrize("how", ["whole", "stream"])
@pytest.mark.parametrize("model", ["responses", "chat", "anthropic"])
async def test_vercel_ai(setup: Setup, model: str, how: str) -> None:
    installed_package("ai")
    assert ANSWER in await setup.node("vercel.mjs", MODEL=model, HOW=how)
    setup.check(roots=1, leaves=1)


@pytest.mark.parametrize("how", ["whole", "stream"])
@pytest.mark.parametrize("sdk", ["anthropic_tool_runner", "openai_run_tools"])
async def test_sdks_that_run_the_tools(setup: Setup, sdk: str, how: str) -> None:
    installed_package("openai")
    assert ANSWER in await setup.node(f"{sdk}.mjs", HOW=how)
    setup.check(roots=1, leaves=1)


def installed_package(name: str) -> None:
    if shutil.which("node") is None or not (AGENTS / "node_modules" / name).exists():
        missing(f"the package {name} is not installed in {AGENTS}; scripts/install_agents.sh installs it")
