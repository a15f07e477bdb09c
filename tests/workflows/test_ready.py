"""The ready workflows: what each makes of a reply, and each on the real engine."""

from __future__ import annotations

import fcntl
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import gymnasium
import pytest

from agentrl.__main__ import command
from agentrl.config import RunConfig
from agentrl.engine.client import sglang_engine
from agentrl.errors import TaskFileError, error_line
from agentrl.proxy import ChatFormat, Proxy, SamplingDefaults, open_proxy
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.run_episode import local_runner, remote_runner
from agentrl.rollout.workflow import Workflow, load_workflow
from agentrl.sandboxes import BackendName
from agentrl.store.outcome import Outcome
from agentrl.system.failure_text import users_part
from agentrl.tasks.task_type import task_type_of
from agentrl.tasks.tasks import list_tasks, open_tasks
from agentrl.testing import Refusal, ScriptedModel, ToolCall
from agentrl.workflows import black_box, chat, tool_loop
from tests.components import wait_until
from tests.record_invariant import Tapped, assert_record_is_what_the_engine_saw

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
IO = {"kind": "io", "stdin": "1 2", "stdout": "3"}


def config(backend: BackendName) -> RunConfig:
    return RunConfig.model_validate({"sandbox": {"backend": backend}, "rollout": {"max_concurrent": 2}})


async def outcome_of(
    workflow: Workflow,
    script: Callable[[list[dict[str, Any]]], Any],
    task: dict[str, Any],
    backend: BackendName = "bubblewrap",
) -> Outcome:
    async with (
        ScriptedModel(lambda request: script(request["messages"])).serve() as url,
        open_run_sandboxes(config(backend)) as sandboxes,
        remote_runner(
            workflow, base_url=url, api_key="-", model="scripted", timeout_s=60, sandboxes=sandboxes
        ) as runner,
    ):
        return await runner.run(task, 0)


def in_turn(*replies: Any) -> Callable[[list[dict[str, Any]]], Any]:
    """A model that says these things one after another."""
    left = list(replies)
    return lambda _: left.pop(0)


@pytest.mark.parametrize(
    ("name", "row", "complaint"),
    [
        ("chat", {"question": "2 + 3", "answer": 5}, "it needs 'prompt' or 'messages'; --data.columns.prompt NAME"),
        ("chat", {"prompt": "2 + 3", "anwser": 5}, "the field 'answer' is missing, which the scorer 'exact' needs"),
        ("chat", {"prompt": "2 + 3", "answer": 5, "scorer": "exakt"}, "there is no scorer 'exakt'; it is one of exact"),
        ("chat", {"prompt": "2 + 3", "scorer": "nowhere.py:score"}, "nowhere.py cannot be imported"),
        ("chat", {"prompt": "2 + 3", "scorer": "nowhere:score"}, "the scorer nowhere:score cannot be loaded"),
        ("chat", {"prompt": ["2 + 3"], "answer": 5}, "the field 'prompt.str': input should be a valid string"),
        ("chat", {"prompt": "2 + 3", "scorer": "judge"}, "no judge: set AGENTRL_JUDGE_BASE_URL"),
        ("black_box", {"comand": ["sh"], "answer": 5}, "the field 'command' is missing"),
        ("black_box", {"command": ["sh"], "answer": 5, "timeout_s": "5m"}, "the field 'timeout_s'"),
        ("black_box", {"command": ["sh"], "answer": 5, "files": ["agent.py"]}, "the field 'files'"),
        ("tool_loop", {"enviroment": "agentrl/Calculator-v0"}, "the field 'env' is missing"),
        ("tool_loop", {"env": "Taxi-v4", "make": "slippery"}, "the field 'make'"),
        ("python_tool", {"prompt": "2 + 3", "answer": 5}, "the field 'question' is missing"),
        ("code", {"prompt": "Add.", "answer": 5}, "no tests: a task has one of tests, "),
        ("code", {"prompt": "Add.", "tests": []}, "there are no tests"),
        ("code", {"tests": [IO]}, "there is no prompt"),
        ("code", {"prompt": 5, "tests": [IO]}, "prompt = 5 must be a valid string"),
        ("code", {"prompt": "Add.", "tests": [{"kind": "oi"}]}, "'oi'"),
        (
            "code",
            {"prompt": "Add.", "tests": [IO], "language": "rust"},
            "language = 'rust' must be one of python, python3, ",
        ),
        ("code", {"prompt": "Add.", "tests": [IO], "partial": "yes"}, "partial"),
        ("code", {"prompt": "Add.", "tests": [IO], "partial": True}, "a partial reward needs the 'baseline'"),
        ("code", {"prompt": "Add.", "tests": [IO], "attempts": 2}, "there are no public_tests to show"),
        (
            "code",
            {"prompt": "Add.", "tests": [IO], "public_tests": [IO], "attempts": 0},
            "the field 'attempts': input should be greater than or equal to 1, not 0",
        ),
        ("code", {"prompt": "Add.", "public_tests": [IO]}, "no tests: a task has one of tests, "),
        ("verifiers_env", {"enviroment": "vf-gcd", "row": 1}, "the field 'environment' is missing"),
        ("verifiers_env", {"environment": "vf-gcd", "row": -1}, "the field 'row'"),
    ],
)
def test_a_line_that_a_workflow_cannot_play_is_refused_when_it_is_read(
    name: str, row: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(row))
    workflow = load_workflow(ROOT / "workflows" / f"{name}.py")
    with pytest.raises(TaskFileError, match=rf"line 1 is no \w+Task, which run\(episode\) takes: .*{complaint}"):
        open_tasks(str(path), task_type_of(workflow))


async def test_an_environment_of_a_file_is_named_in_the_task(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from agentrl.envs import ToolEnv\n\n\nclass Mine(ToolEnv):\n"
        "    def on_reset(self, task):\n        return 'Say yes.'\n\n"
        "    def on_answer(self, content):\n        return float(content == 'yes')\n"
    )
    done = await outcome_of(tool_loop.run, in_turn("yes"), {"env": f"{path}:Mine"})
    assert (done.error, done.reward) == (None, 1.0)
    done = await outcome_of(tool_loop.run, in_turn("yes"), {"env": f"{path}:Yours"})
    assert "mine.py:Yours' cannot be loaded" in (done.error or "")


async def test_an_environment_is_found_by_its_module_beside_the_task_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_the_tasks.py").write_text(
        "import gymnasium\nfrom agentrl.envs.calculator_env import CalculatorEnv\n"
        "gymnasium.register('Beside-v0', entry_point=CalculatorEnv)\n"
    )
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"env": "beside_the_tasks:Beside-v0", "question": "1 + 1 =", "answer": "2"}')
    (task,) = await anyio.to_thread.run_sync(list_tasks, str(path))
    done = await outcome_of(tool_loop.run, in_turn("2"), task)
    assert (done.error, done.reward) == (None, 1.0)
    del gymnasium.registry["Beside-v0"]


def test_the_command_finds_modules_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setattr("agentrl.cli.main.main", lambda: 0)
    monkeypatch.setattr("agentrl.system.event_loop.end_process", lambda code: None)
    monkeypatch.chdir(tmp_path)
    command()
    assert str(tmp_path) in sys.path


# What they make of a reply --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scorer", "reply", "answer", "reward"),
    [
        ("exact", " Paris\n", "paris", 1.0),
        ("exact", "Paris, France", "Paris", 0.0),
        ("contains", "It is Paris, France.", "paris", 1.0),
        ("number", "First 3, then 1,234.50.", "1234.5", 1.0),
        ("number", "none", "3", 0.0),
        ("boxed", "so \\boxed{42}", "42.0", 1.0),
        ("tests.workflows.test_ready:length", "four", 0, 4.0),
        ("tests.workflows.test_ready:length_later", "four", 0, 4.0),
    ],
)
async def test_chat_scores_a_reply(scorer: str, reply: str, answer: Any, reward: float) -> None:
    outcome = await outcome_of(chat.run, lambda _: reply, {"prompt": "?", "answer": answer, "scorer": scorer})
    assert (outcome.error, outcome.reward) == (None, reward)


async def test_a_prompt_may_be_messages() -> None:
    talk = [{"role": "user", "content": "Say yes."}]
    outcome = await outcome_of(chat.run, lambda messages: str(messages == talk), {"prompt": talk, "answer": "True"})
    assert (outcome.error, outcome.reward) == (None, 1.0)


def length(reply: str, task: dict[str, Any]) -> float:
    return float(len(reply))


async def length_later(reply: str, task: dict[str, Any]) -> float:
    await anyio.sleep(0)
    return float(len(reply))


def forgets(reply: str, task: dict[str, Any]) -> Any:
    task["reward"] = len(reply)


async def test_a_scorer_that_returns_no_reward_is_named_with_its_line() -> None:
    task = {"prompt": "?", "scorer": "tests.workflows.test_ready:forgets"}
    outcome = await outcome_of(chat.run, lambda _: "four", task)
    said, place = "the scorer tests.workflows.test_ready:forgets returned None of type NoneType", forgets.__code__
    assert said in (outcome.error or "")
    assert f"(returned at {__file__}:{place.co_firstlineno + 1} in forgets)" in (outcome.error or "")


async def test_the_tool_loop_plays_any_environment() -> None:
    task = {"env": "agentrl/Calculator-v0", "question": "What is 2 + 3?", "answer": "5"}
    script = in_turn(
        ToolCall("calculator", '{"expression": "2 +"}'), ToolCall("calculator", '{"expression": "2 + 3"}'), "5"
    )
    outcome = await outcome_of(tool_loop.run, script, task)
    assert (outcome.error, outcome.reward) == (None, 1.0)
    assert outcome.metrics == {"turns": 3.0, "failed_turns": 1.0, "truncated": 0.0}


@pytest.mark.parametrize(
    "named",
    [
        {"env": "FrozenLake-v1", "make": {"is_slippery": False}, "seed": None, "options": None},
        {
            "env": "agentrl/Gym-v0",
            "make": {"env": "FrozenLake-v1", "make": {"is_slippery": False}, "instructions": "Cross."},
            "seed": "attempt",
        },
    ],
)
async def test_the_tool_loop_plays_any_gymnasium_environment(named: dict[str, Any]) -> None:
    moves = ("down", "down", "right", "right", "down", "right")
    script = in_turn(*(ToolCall("act", json.dumps({"action": move})) for move in moves))
    outcome = await outcome_of(tool_loop.run, script, {**named, "turn_rewards": True})
    assert (outcome.error, outcome.reward, outcome.metrics["turns"]) == (None, 1.0, 6.0)


@contextmanager
def judge_at(url: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTRL_JUDGE_BASE_URL", url)
        patch.setenv("AGENTRL_JUDGE_MODEL", "judge")
        yield


async def judged(*says: Any) -> tuple[Outcome, list[str]]:
    """Return the outcome of a reply that a judge scores, and what the judge was asked."""
    replies, asked = in_turn(*says), []

    def script(request: dict[str, Any]) -> Any:
        asked.append(request["messages"][0]["content"])
        return replies(request)

    task = {"prompt": "Why?", "scorer": "judge", "criteria": "It is short.", "answer": "So."}
    async with ScriptedModel(script).serve() as url:
        with judge_at(url):
            return await outcome_of(chat.run, lambda _: "Because.", task), asked


@pytest.mark.parametrize(
    ("says", "score"),
    [
        (("I like it.\nScore: 7",), 0.7),
        (("Hm.", "Score: 12", "score: 2"), 0.2),
        ((Refusal(429), Refusal(429), "Score: 10"), 1.0),
    ],
)
async def test_a_judge_scores_a_reply_and_is_asked_again_where_it_gives_no_score(
    says: tuple[Any, ...], score: float
) -> None:
    outcome, asked = await judged(*says)
    assert (outcome.error, outcome.reward, len(asked)) == (None, score, len(says))
    assert json.loads(outcome.details or "") == {"judge": says[-1]}
    assert "Why?" in asked[0]
    assert "Because." in asked[0]
    assert "Reference answer:\nSo." in asked[0]
    assert "Criteria: It is short." in asked[0]


async def test_a_judge_that_gives_no_score_fails_the_episode() -> None:
    outcome, _ = await judged(*["No comment"] * 3)
    assert "the judge judge gave no score in 3 answers, the last: 'No comment'" in (outcome.error or "")


# Black boxes ----------------------------------------------------------------------------------------------------------

AGENT = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
assert "answer" not in task
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": task["prompt"]}], "max_tokens": 8}
if task.get("stream"):
    body["stream"] = True
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
reply = urllib.request.urlopen(request).read().decode()
print(reply if task.get("stream") else json.loads(reply)["choices"][0]["message"]["content"])
print(os.environ["OPENAI_API_KEY"], file=sys.stderr)
"""
BOXED = {"command": [sys.executable, "agent.py"], "files": {"agent.py": AGENT}, "prompt": "Capital?", "answer": "Paris"}
ENDED_WELL = {"exit_code": 0.0, "program_failed": 0.0}
IN_A_SANDBOX = {**BOXED, "command": ["python3", "agent.py"], "sandbox": True}


async def test_any_program_is_an_agent() -> None:
    outcome = await outcome_of(black_box.run, lambda _: "Paris", BOXED)
    assert (outcome.error, outcome.reward, outcome.metrics) == (None, 1.0, ENDED_WELL)


async def test_any_program_is_an_agent_in_a_sandbox(backend: BackendName, dead_proxy: None) -> None:
    outcome = await outcome_of(black_box.run, lambda _: "Paris", IN_A_SANDBOX, backend)
    assert (outcome.error, outcome.reward, outcome.metrics) == (None, 1.0, ENDED_WELL)


@pytest.mark.parametrize("sandbox", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("ends", "timeout_s", "code", "complaint"),
    [
        (
            "raise LookupError('no such tool')",
            60,
            1.0,
            r"exit code 1: LookupError: no such tool\. It also wrote: 'Traceback((?!no such tool).)*raise LookupError\([^|]*'$",
        ),
        pytest.param(
            "print('out of cheese', file=sys.stderr); raise SystemExit(3)",
            60,
            3.0,
            r"exit code 3: out of cheese$",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "sys.stderr.write('x' * 10**6 + 'at last'); sys.exit(4)",
            60,
            4.0,
            r"exit code 4: .*x{500}at last'$",
            marks=pytest.mark.soak,
        ),
        ("os.kill(os.getpid(), 9)", 60, -9.0, r"exit code (-9|137)"),
        pytest.param(
            "print('waits', file=sys.stderr, flush=True); import time; time.sleep(60)",
            3,
            -1.0,
            r"was stopped \(timeout\): timeout_s = 3 s .*: waits$",
            marks=pytest.mark.soak,
        ),
    ],
)
async def test_a_program_that_fails_or_hangs_after_a_call_is_a_failure_that_tells_what_it_said(
    bubblewrap: BackendName, sandbox: bool, ends: str, timeout_s: float, code: float, complaint: str
) -> None:
    """And no reward of 0: nothing that the policy did was judged."""
    agent = f"{AGENT.replace('print(os.environ', '(os.environ').replace(', file=sys.stderr)', ')')}\n{ends}\n"
    task = {**(IN_A_SANDBOX if sandbox else BOXED), "files": {"agent.py": agent}, "timeout_s": timeout_s}
    asked: list[Any] = []

    def script(messages: list[dict[str, Any]]) -> str:
        asked.append(messages)
        return "Paris"

    outcome = await outcome_of(black_box.run, script, task)
    assert len(asked) == 1
    assert not outcome.finished
    assert re.search(complaint, (outcome.error or "").strip(), re.DOTALL), outcome.error
    assert outcome.metrics["program_failed"] == 1.0
    assert outcome.metrics["exit_code"] in (code, 128 - code if code < -1 else code)
    for told in (error_line(outcome.error or ""), users_part(outcome.error or "").splitlines()[-1]):
        assert re.search(r"Error: the program \[.* (ended with exit code -?\d+: |was stopped)", told)


async def test_what_a_program_leaves_running_is_stopped(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    left = f"import fcntl, subprocess; file = open({str(lock)!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
    left += "subprocess.Popen(['sleep', '1000'], pass_fds=[file.fileno()]); print('Paris')"
    outcome = await outcome_of(
        black_box.run, lambda _: "", {"command": [sys.executable, "-c", left], "answer": "Paris"}
    )
    assert outcome.reward == 1.0

    def is_free() -> bool:
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    await wait_until(is_free, 40)


async def test_a_sandbox_reaches_the_model_and_nothing_else(backend: BackendName) -> None:
    """Not the network, not the host's loopback, and not the key."""
    spy = """
import os, socket, sys
sys.stdin.read()
for host, port in (("127.0.0.1", int(sys.argv[1])), ("1.1.1.1", 53)):
    try:
        socket.create_connection((host, port), timeout=2)
        print("reached", host)
    except OSError:
        pass
print(os.environ["OPENAI_API_KEY"])
"""
    async with ScriptedModel(lambda _: "").serve() as url:
        port = url.split(":")[2].split("/")[0]
        task = {"command": ["python3", "spy.py", port], "files": {"spy.py": spy}, "answer": "outside", "sandbox": True}
        async with (
            open_run_sandboxes(config(backend)) as sandboxes,
            remote_runner(
                black_box.run, base_url=url, api_key="secret", model="m", timeout_s=60, sandboxes=sandboxes
            ) as runner,
        ):
            outcome = await runner.run(task, 0)
    assert (outcome.error, outcome.reward) == (None, 1.0)


# On a real engine -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def real(server_url: str, chat_format: ChatFormat) -> AsyncIterator[tuple[Proxy, Tapped]]:
    async with sglang_engine([server_url]) as engine:
        tapped = Tapped(engine)
        async with open_proxy(tapped, chat_format, "nano") as proxy:
            yield proxy, tapped


async def really(
    workflow: Workflow, task: dict[str, Any], where: tuple[Proxy, Tapped], sandboxes: Any = None
) -> Outcome:
    proxy, tapped = where
    tapped.calls.clear()
    defaults = SamplingDefaults(max_tokens=12)
    async with local_runner(workflow, proxy, timeout_s=60, defaults=defaults, sandboxes=sandboxes) as runner:
        outcome = await runner.run(task, 0)
    assert outcome.error is None, outcome.error
    assert outcome.record.turns
    assert_record_is_what_the_engine_saw(outcome.record, tapped.calls)
    return outcome


async def test_every_workflow_on_the_real_engine(
    any_server_url: str, nano_format: ChatFormat, bubblewrap: BackendName
) -> None:
    question = {"prompt": "2 + 3 =", "answer": "never"}
    async with (
        real(any_server_url, nano_format) as engine,
        open_run_sandboxes(config(bubblewrap)) as sandboxes,
        ScriptedModel(lambda _: "Score: 5").serve() as judge_url,
    ):
        assert (await really(chat.run, question, engine)).reward == 0.0
        await really(tool_loop.run, {"env": "agentrl/Calculator-v0", "question": "1 + 1 =", "answer": "2"}, engine)
        for game in ("FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CartPole-v1"):
            make = {"env": game, "instructions": "", "max_turns": 2}
            played = await really(tool_loop.run, {"env": "agentrl/Gym-v0", "make": make}, engine)
            assert 1 <= played.metrics["turns"] <= 2
        with judge_at(judge_url):
            assert (await really(chat.run, {**question, "scorer": "judge"}, engine)).reward == 0.5
        for boxed in (BOXED, IN_A_SANDBOX, {**IN_A_SANDBOX, "stream": True}):
            outcome = await really(
                black_box.run, {**boxed, "answer": "data: [DONE]", "scorer": "contains"}, engine, sandboxes
            )
            assert outcome.metrics == ENDED_WELL
            assert outcome.reward == float("stream" in boxed)
