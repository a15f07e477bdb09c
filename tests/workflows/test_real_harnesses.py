"""Claude Code, Codex and OpenCode, unmodified, mend a repository in a container that reaches the model alone, and are trained on.

`scripts/install_agents.sh` installs them, `scripts/agents_image.sh` makes the image.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.config import RunConfig, load_config
from agentrl.models import NANO
from agentrl.proxy import ChatFormat, SamplingDefaults, open_proxy
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.run_episode import local_runner
from agentrl.run.run_directory import write_config
from agentrl.sandboxes import BackendName
from agentrl.store.changes import CloseGroup, InsertEpisode, OpenGroup
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store
from agentrl.workflows import harness
from agentrl.workflows.harnesses import HARNESSES, installed_agents
from tests.components import missing
from tests.policy_by_prompt import PolicyByPrompt
from tests.proxy.conformance.recording import Recorder
from tests.recorded_run import TrainerOfRun

pytestmark = [pytest.mark.anyio, pytest.mark.soak, pytest.mark.timeout(600)]
WRONG = "def add(a, b):\n    return a - b\n"
HIDDEN = "from calc import add\n\ndef test_small():\n    assert add(2, 3) == 5\n"
LOOK, MEND, DONE = "cat calc.py", "sed -i 's/a - b/a + b/' calc.py && cat calc.py", "I have mended add()."
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What mini-swe-agent has its model print at the end."""
IMAGE = "agentrl/agents"


class Engine(PolicyByPrompt):
    """Each sampled token has a logprob of its own, so that none can be another's."""

    def generation(self, ids: Sequence[int]) -> Generation:
        begins = sum(len(generation.output_ids) for _, generation in self.calls)
        logprobs = [-(begins + index + 1) / 4096 for index in range(len(ids))]
        return Generation(
            output_ids=list(ids), logprobs=logprobs, versions=[VersionSpan(0, 0, len(ids))], finish="stop"
        )


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def solve(prompt: str) -> str:
    """Look at the file, mend it, and say so. Side calls, which have no tools, get a word."""
    spoken = prompt[prompt.rfind("add() is wrong") :]
    if "return a + b" in spoken:
        return DONE + (call("bash", command=f"echo {SUBMIT}") if SUBMIT in prompt else "")
    command = MEND if "return a - b" in spoken else LOOK
    for name, arguments in (
        ("Bash", {"command": command, "description": "Work"}),
        ("exec_command", {"cmd": command}),
        ("bash", {"command": command, "description": "Work"}),
        ("run_shell_command", {"command": command, "description": "Work"}),
    ):
        if re.search(rf'"name": ?"{name}"', prompt):
            return call(name, **arguments)
    return "Sum"


def give_up(prompt: str) -> str:
    return "I cannot do that."


def check_installed(program: str) -> None:
    if not any((installed_agents() / folder / program).exists() for folder in ("bin", "node_modules/.bin")):
        missing(f"{program} is not installed in {installed_agents()}; scripts/install_agents.sh installs it")


def check_image() -> None:
    done = subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, timeout=60)
    if done.returncode:
        missing(f"there is no image {IMAGE}; scripts/agents_image.sh makes it")


CLIENTS = {
    "claude-code": ("Claude Code", "@anthropic-ai/claude-code"),
    "codex": ("Codex", "@openai/codex"),
    "opencode": ("OpenCode", "opencode-ai"),
    "gemini": ("Gemini CLI", "@google/gemini-cli"),
    "mini-swe-agent": ("mini-swe-agent", ""),
}
"""What a harness's recording is of: the client, and the package of npm that it is installed from; "": of PyPI."""


def version_of(package: str) -> str:
    """Return the version that is installed."""
    if package:
        text = (installed_agents() / "node_modules" / package / "package.json").read_text()
        return str(json.loads(text)["version"])
    (folder,) = installed_agents().glob("python/lib/python3*/site-packages/mini_swe_agent-*.dist-info")
    return folder.name.removesuffix(".dist-info").rpartition("-")[2]


async def episodes(
    engine: Engine, chat_format: ChatFormat, task: dict[str, Any], decides: Sequence[Any]
) -> list[Outcome]:
    """An episode for each policy."""
    config = RunConfig.model_validate({"sandbox": {"image": IMAGE}, "rollout": {"max_concurrent": 2}})
    name = task["harness"] if isinstance(task["harness"], str) else "claude-code"
    client, package = CLIENTS[name]
    recorder = Recorder(client, await in_thread(version_of, package))
    async with (
        open_proxy(engine, chat_format, "nano", training=True, middleware=recorder.around) as proxy,
        open_run_sandboxes(config) as sandboxes,
        local_runner(harness.run, proxy, timeout_s=300, sandboxes=sandboxes, defaults=SamplingDefaults()) as runner,
    ):
        outcomes = []
        for seed, decide in enumerate(decides):
            engine.reply = recorder.saying(decide)
            outcomes.append(await runner.run(task, seed))
    await recorder.save()
    return outcomes


def check_token_by_token(record: TokenRecord, calls: list[tuple[list[int], Generation]]) -> None:
    """Each turn is one call of the engine, goes on from the ids of its parent or begins anew, and each token that is trained on is one
    that was sampled, with the logprob that it was sampled with."""
    by_ids = {(tuple(sent), tuple(generation.output_ids)): generation for sent, generation in calls}
    sampled: dict[int, tuple[int, Generation]] = {}
    earlier: list[list[int]] = []
    for index, turn in enumerate(record.turns):
        ids = turn.token_ids()
        begins = len(ids) - len(turn.output_ids)
        generation = by_ids[tuple(ids[:begins]), tuple(turn.output_ids)]
        assert turn.logprobs == generation.logprobs
        sampled[index] = (begins, generation)
        if turn.parent is None:
            assert not any(ids[: len(before)] == before for before in earlier)
        else:
            before = turn.parent.token_ids()
            assert ids[: len(before)] == before
            assert begins > len(before)
        earlier.append(ids)
    trained = 0
    for path in record.trajectories():
        for position, is_trained in enumerate(path.loss_mask):
            if is_trained:
                begins, generation = sampled[path.turn_index[position]]
                assert path.token_ids[position] == generation.output_ids[position - begins]
                assert path.logprobs[position] == generation.logprobs[position - begins]
                trained += 1
    assert trained == sum(len(turn.output_ids) for turn in record.turns if not turn.left_out)


def step_on(run_dir: Path, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Take one training step of the nano model on a group of episodes; its metrics."""
    size = len(outcomes)
    run_dir.mkdir()
    config = load_config(
        (),
        {},
        run_dir=str(run_dir),
        model={"path": str(NANO)},
        rollout={"group_size": size, "batch_size": size},
        trainer={"optimizer": {"lr": 1e-3}, "tokens_per_pack": 1024},
    )
    write_config(config)
    with Store(run_dir / "store.sqlite") as store:
        store.begin_restart("tasks", config.model_dump_json())
        store.write([OpenGroup(0, 0, 0)])
        for index, outcome in enumerate(outcomes):
            store.write([InsertEpisode(0, index, 0, outcome)])
        store.write([CloseGroup(0)])
    process = TrainerOfRun(run_dir, run_dir / "weights")
    process.load(None)
    metrics: dict[str, Any] = process.step_on([0])["metrics"]
    return metrics


TASK = {
    "repository": {"files": {"calc.py": WRONG}},
    "prompt": "add() is wrong. Mend it.",
    "tests": {"files": {"tests/test_calc.py": HIDDEN}},
    "limits": {"timeout_s": 120},
}


@pytest.mark.parametrize("name", ["claude-code", "codex", "opencode", "gemini", "mini-swe-agent"])
async def test_a_real_agent_mends_a_repository(name: str, nano_format: ChatFormat, docker: BackendName) -> None:
    check_installed(HARNESSES[name].program)
    await in_thread(check_image)
    chat_format = ChatFormat(nano_format.tokenizer, nano_format.renderer, 4_000_000)
    engine = Engine(chat_format, solve, has_grammar=True)
    (solved,) = await episodes(engine, chat_format, {**TASK, "harness": name}, (solve,))
    assert (solved.error, solved.reward, solved.metrics.get("answered")) == (None, 1.0, 1.0)
    check_token_by_token(solved.record, engine.calls)
    roots = [turn for turn in solved.record.turns if turn.parent is None and not turn.left_out]
    assert (len(roots), sum(not turn.left_out for turn in solved.record.turns)) == (1, 3)


async def test_the_nano_model_is_trained_on_episodes_of_claude_code(
    nano_format: ChatFormat, docker: BackendName, tmp_path: Path
) -> None:
    """With one tool and a short prompt of the task's own, as a row of its own: what its long one has would take minutes to train on."""
    check_installed("claude")
    await in_thread(check_image)
    row = HARNESSES["claude-code"]
    short = row.model_copy(update={"command": f"{row.command} --tools Bash --system-prompt 'You mend code.'"})
    chat_format = ChatFormat(nano_format.tokenizer, nano_format.renderer, 4_000_000)
    engine = Engine(chat_format, solve, has_grammar=True)
    task = {**TASK, "harness": short.model_dump()}
    outcomes = await episodes(engine, chat_format, task, (solve, give_up))
    assert [(outcome.error, outcome.reward) for outcome in outcomes] == [(None, 1.0), (None, 0.0)]
    for outcome in outcomes:
        check_token_by_token(outcome.record, engine.calls)
    metrics = await in_thread(step_on, tmp_path / "run", outcomes)
    sampled = sum(len(turn.output_ids) for outcome in outcomes for turn in outcome.record.turns if not turn.left_out)
    assert (metrics["sequences"], metrics["trained_tokens"]) == (2, sampled)
    assert metrics["grad_norm"] > 0
