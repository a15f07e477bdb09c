"""Workflows in worker processes: real processes, on the real engine, through the real store."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psutil
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.config import ProxyConfig, RunConfig, SandboxConfig
from agentrl.engine.client import sglang_engine
from agentrl.envs.calculator_env import distinct_tasks
from agentrl.errors import ConfigError, TaskFileError, WorkerError
from agentrl.models import NANO
from agentrl.proxy import ChatFormat, SamplingDefaults
from agentrl.record.trajectory import TokenRecord
from agentrl.rollout.controller import Controller
from agentrl.rollout.gate import StalenessGate
from agentrl.rollout.open_runner import open_rollout
from agentrl.rollout.workers import protocol
from agentrl.rollout.workers.pool import WorkerPool
from agentrl.run.audit import audit
from agentrl.run.metrics_page import metrics_of_run
from agentrl.run.train import train
from agentrl.run.view import RunView
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store
from agentrl.system.host import free_port
from agentrl.tasks.curriculum import TaskList
from tests.components import wait_until
from tests.engine.scripted_server import scripted_server, sound_states
from tests.record_invariant import assert_record_is_what_the_engine_saw
from tests.run.test_train import environment, left_behind, metrics
from tests.tapped_server import TappedServer, tapped_server

pytestmark = pytest.mark.anyio
BOUND_S = 200  # starting a process takes seconds, and on a busy machine many
ROOT = Path(__file__).parents[3]

WORKFLOW = r'''
import asyncio, json, os, re, signal, subprocess, sys, threading, time
from pathlib import Path
from agentrl.envs import ToolEnv, tool
from agentrl.rollout.workers import protocol

HERE = Path(__file__).parent


async def ask(episode, messages, **options):
    options = {"max_tokens": 12, "temperature": 1.4, **options}
    reply = await episode.client.chat.completions.create(model=episode.model, messages=messages, **options)
    if not options.get("stream"):
        return reply.id, [choice.message.content for choice in reply.choices]
    chunks = [chunk async for chunk in reply]
    return chunks[0].id, ["".join(chunk.choices[0].delta.content or "" for chunk in chunks)]


async def waits_in_the_middle(episode):
    """Four calls; before the last one it waits for a file. What it was answered goes to a file of this process."""
    messages, said = [{"role": "user", "content": "1 + 1 ="}], []
    for turn in range(4):
        if turn == 3:
            (HERE / f"{episode.seed}.{os.getpid()}").write_text(json.dumps(said))
            while not (HERE / "go").exists():
                await asyncio.sleep(0.05)
        said.append(await ask(episode, messages, n=2))
        messages += [{"role": "assistant", "content": said[-1][1][-1]}, {"role": "user", "content": "+ 1 ="}]
    (HERE / f"{episode.seed}.{os.getpid()}").write_text(json.dumps(said))


class Adder(ToolEnv):
    max_turns = 2

    def on_reset(self, task):
        return "1 + 1 ="

    @tool
    def add(self, a: int, b: int) -> int:
        """Add."""
        return a + b

    def on_answer(self, content):
        return float(content == "2")


async def plays(episode):
    env = episode.env(Adder)
    await env.reset(seed=episode.seed)
    for turn in range(2):
        reply = await episode.client.chat.completions.create(
            model=episode.model, messages=env.messages, tools=env.tools, max_tokens=12
        )
        await env.step(reply.choices[0].message)
        if env.done:
            break


async def makes_noise(episode):
    print("noise", "\udcff".encode("utf-8", "surrogateescape"), flush=True)
    os.write(1, b"\x00\x00\x00\x01{}\n" * 100)
    subprocess.run(["sh", "-c", "cat; echo noise"], check=True)
    assert sys.stdin.read() == ""
    await ask(episode, [{"role": "user", "content": "1 + 1 ="}], stream=True)


async def uses_a_sandbox(episode):
    sandbox = await episode.sandbox()
    done = await sandbox.run(["echo", "hello"])
    assert done.stdout == b"hello\n", done
    await ask(episode, [{"role": "user", "content": "1 + 1 ="}])


async def says_too_much(episode):
    protocol.MAX_FRAME_BYTES = 4000
    episode.log(**{f"metric_{number}": number for number in range(400)})
    await ask(episode, [{"role": "user", "content": "1 + 1 ="}])


async def sleeps(episode):
    await ask(episode, [{"role": "user", "content": "1 + 1 ="}])

    for _ in range(20):  # whose stacks fill the log first
        threading.Thread(target=threading.Event().wait, daemon=True).start()

    async def in_a_task_of_its_own():
        time.sleep(60)  # this line blocks

    await asyncio.create_task(in_a_task_of_its_own())


async def matches(episode):
    await ask(episode, [{"role": "user", "content": "1 + 1 ="}])
    re.match("(a+)+$", "a" * 60 + "b")  # this line blocks


async def exits(episode):
    await ask(episode, [{"role": "user", "content": "1 + 1 ="}])
    os._exit(7)


async def is_stopped(episode):
    os.kill(os.getpid(), signal.SIGSTOP)


async def is_signalled(episode):
    os.kill(os.getpid(), 40)


async def has_a_child_and_blocks(episode):
    child = subprocess.Popen(["sleep", "120"])
    (HERE / "pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(120)


async def run(episode):
    await globals()[episode.task["do"]](episode)
    episode.log(pid=os.getpid())
    return 1.0
'''


@pytest.fixture
def workflow(tmp_path: Path) -> Path:
    path = tmp_path / "flow.py"
    path.write_text(WORKFLOW)
    return path


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(WORKFLOW.splitlines(), 1) if text in line)


def settings(workflow: Path, **rollout: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "workflow": str(workflow),
            "model": {"path": str(NANO)},
            "rollout": {"workers": 1, "episode_timeout_s": 60, **rollout},
        }
    )


async def unused(episode: Any) -> float:
    raise AssertionError("the workflow runs in the workers")


@asynccontextmanager
async def workers(url: str, config: RunConfig, said: list[str]) -> AsyncIterator[tuple[WorkerPool, TappedServer]]:
    logs = Path(config.workflow).parent
    with anyio.fail_after(BOUND_S):
        async with (
            tapped_server(url) as server,
            sglang_engine([server.url]) as engine,
            open_rollout(config, unused, engine, logs=logs, say=said.append) as runner,
        ):
            assert isinstance(runner, WorkerPool)
            yield runner, server


async def run_all(runner: WorkerPool, *todo: str, defaults: SamplingDefaults | None = None) -> list[Outcome]:
    """The outcomes of episodes that run at the same time."""
    outcomes: dict[int, Outcome] = {}

    async def one(index: int, do: str) -> None:
        outcomes[index] = await runner.run({"do": do}, index, defaults=defaults)

    async with anyio.create_task_group() as group:
        for index, do in enumerate(todo):
            group.start_soon(one, index, do)
    return [outcomes[index] for index in range(len(todo))]


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_episodes_run_in_the_workers_and_record_what_the_engine_saw(server_url: str, workflow: Path) -> None:
    (workflow.parent / "go").touch()
    said: list[str] = []
    todo = ["plays", "waits_in_the_middle", "makes_noise", "uses_a_sandbox"] * 2
    config = settings(workflow, workers=2)
    config = config.model_copy(update={"sandbox": SandboxConfig(backend="UNSAFE_no_isolation")})
    async with workers(server_url, config, said) as (runner, server):
        outcomes = await run_all(runner, *todo, defaults=SamplingDefaults(max_tokens=9))
        await wait_until(lambda: runner.metrics().get("sandbox_taken") == 2, 30)
        lost = runner.metrics()["workers_lost"]
    assert [(outcome.reason, outcome.error) for outcome in outcomes] == [("finished", None)] * 8
    turns = [turn for outcome in outcomes for turn in outcome.record.turns]
    assert_record_is_what_the_engine_saw(TokenRecord(turns), server.calls)
    pids = {outcome.metrics["pid"] for outcome in outcomes}
    assert len(pids) == 2, "the least busy worker takes the next episode"
    assert os.getpid() not in pids
    assert (lost, said) == (0, [])
    logs = [workflow.parent / f"worker-{index}.log" for index in range(2)]
    assert "noise" in "".join(log.read_text(errors="replace") for log in logs)
    assert {log.stat().st_mode & 0o777 for log in logs} == {0o600}
    assert not any(map(psutil.pid_exists, map(int, pids)))


async def test_episodes_of_a_killed_worker_go_on_elsewhere_token_for_token(server_url: str, workflow: Path) -> None:
    config = settings(workflow, workers=2, batch_size=4, group_size=2, drop_uniform_groups=False)
    here, said = workflow.parent, list[str]()

    def transcripts() -> dict[tuple[str, int], Any]:
        found = [path for path in here.glob("*.*") if path.suffix[1:].isdigit() and path.stat().st_size]
        return {(path.stem, int(path.suffix[1:])): json.loads(path.read_text()) for path in found}

    with await in_thread(Store, here / "store.sqlite") as store:
        await in_thread(store.begin_restart)
        async with workers(server_url, config, said) as (runner, server):
            gate = StalenessGate(groups_per_batch=2, max_staleness=0, window=1)
            tasks = TaskList([[{"do": "waits_in_the_middle"}]])
            controller = Controller(tasks, config.rollout, 0, runner, store, gate)
            async with anyio.create_task_group() as group:
                group.start_soon(controller.run)
                await wait_until(lambda: len(transcripts()) == 4, 100)
                before = transcripts()
                killed = min(pid for _, pid in before)
                os.kill(killed, signal.SIGKILL)
                await wait_until(lambda: len(transcripts()) == 6, 100)
                (here / "go").touch()
                batch = await controller.next_batch()
                group.cancel_scope.cancel()
            assert runner.metrics()["workers_lost"] == 1
        assert batch is not None
        episodes = await in_thread(store.episodes, batch.group_ids)
        assert store._db.execute(
            "SELECT COUNT(*), COUNT(DISTINCT group_id * 2 + episode_index) FROM episodes"
        ).fetchone() == (
            4,
            4,
        )
    assert "killed by SIGKILL" in said[0]
    after = transcripts()
    moved = [seed for seed, pid in before if pid == killed]
    assert len(moved) == 2
    for seed in moved:
        (again,) = (said for (s, pid), said in after.items() if s == seed and pid != killed)
        assert again[:3] == before[seed, killed], "what was answered is answered again, ids and all"
    assert not any(episode.replayed_tokens for episode in episodes), "no earlier start of the run made them"
    assert len(server.calls) == 4 * 4 * 2, "no call was made twice"
    turns = [turn for episode in episodes for turn in episode.record.turns]
    assert_record_is_what_the_engine_saw(TokenRecord(turns), server.calls)


async def run_beside(runner: WorkerPool, workflow: Path, *todo: str) -> list[Outcome]:
    """The outcomes of the first episode and of others, which end when it has taken the first worker along."""

    async def release() -> None:
        await wait_until(lambda: runner.metrics()["workers_lost"] >= 1, 100)
        (workflow.parent / "go").touch()

    async with anyio.create_task_group() as group:
        group.start_soon(release)
        return await run_all(runner, *todo)


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_an_episode_that_blocks_its_worker_fails_and_names_the_line(
    server_url: str, workflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.rollout.workers.pool.HANG_TIMEOUT_S", 2)
    said: list[str] = []
    async with workers(server_url, settings(workflow), said) as (runner, _):
        blocks, *others = await run_beside(runner, workflow, "sleeps", *["waits_in_the_middle"] * 3)
        lost = runner.metrics()["workers_lost"]
    assert [outcome.reason for outcome in (blocks, *others)] == ["worker"] + ["finished"] * 3
    assert blocks.error is not None
    where = f"{workflow}:{line_of('time.sleep(60)')} in in_a_task_of_its_own"
    assert f"blocked for 2 s (run long work in a thread) by {where}" in blocks.error
    assert where in said[0]
    assert lost == 3, "the others come to their end alone, or beside it"


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("do", "says"),
    [("matches", f"by FLOW:{line_of('re.match')} in matches"), ("is_stopped", "sent nothing for 4 s")],
)
async def test_a_worker_whose_python_runs_no_more_is_lost_too(
    server_url: str, workflow: Path, monkeypatch: pytest.MonkeyPatch, do: str, says: str
) -> None:
    monkeypatch.setattr("agentrl.rollout.workers.pool.HANG_TIMEOUT_S", 2)
    async with workers(server_url, settings(workflow), []) as (runner, _):
        (outcome,) = await run_all(runner, do)
    assert outcome.error is not None
    assert says.replace("FLOW", str(workflow)) in outcome.error


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_an_episode_that_ends_its_process_fails_alone(server_url: str, workflow: Path) -> None:
    said: list[str] = []
    async with workers(server_url, settings(workflow), said) as (runner, _):
        exits, other = await run_beside(runner, workflow, "exits", "waits_in_the_middle")
    assert exits.error is not None
    assert "lost its worker 3 times, the last time alone in it" in exits.error
    assert all("exit status 7" in line for line in (exits.error, *said))
    assert other.reason == "finished", other.error


@pytest.mark.soak
@pytest.mark.timeout(500)
async def test_a_run_in_workers_survives_one_that_is_killed_and_evaluates_in_them_too(tmp_path: Path) -> None:
    for name, seed in (("train", 1), ("eval", 999)):
        lines = [json.dumps(task) + "\n" for task in await in_thread(distinct_tasks, 16, seed)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    values = {
        "tasks": tmp_path / "train.jsonl",
        "eval.tasks": tmp_path / "eval.jsonl",
        "run_dir": tmp_path / "run",
        "model.path": NANO,
        "steps": 3,
        "rollout.workers": 2,
        "rollout.batch_size": 16,
        "rollout.group_size": 4,
        "rollout.max_concurrent": 8,
        "rollout.max_tokens": 64,
        "trainer.optimizer.lr": 1e-4,
    }
    options = [f"--{key}={value}" for key, value in values.items()]
    command = [sys.executable, "-m", "agentrl", "train", "workflows/calculator.py", *options]
    env, log = environment(tmp_path / "run"), tmp_path / "out"
    with log.open("wb") as out, anyio.fail_after(400):
        async with await anyio.open_process(command, cwd=ROOT, env=env, stdout=out, stderr=out) as run:
            await wait_until(lambda: len(metrics(tmp_path / "run")) >= 1, 300)
            children = psutil.Process(run.pid).children()
            killed = next(child for child in children if "agentrl.rollout.worker_process" in child.cmdline())
            killed.kill()
            status = await run.wait()
    assert status == 0, log.read_text()
    assert "was killed by SIGKILL" in log.read_text()
    assert metrics(tmp_path / "run")[-1]["workers_lost"] == 1
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 3
    assert summary["attempts_failed"] == 0
    assert summary["eval_before"] is not None
    assert summary["eval_after"] is not None
    assert summary["logprob_mismatch_max"] < 1e-3
    assert (await in_thread(audit, tmp_path / "run")).violations == []
    assert await in_thread(left_behind, tmp_path / "run") == []


HOST = """
import sys, anyio
from pathlib import Path
from agentrl.config import RunConfig
from agentrl.engine.client import sglang_engine
from agentrl.rollout.open_runner import open_rollout

async def main():
    config = RunConfig.model_validate_json(sys.argv[2])
    async with sglang_engine([sys.argv[1]]) as engine, \\
            open_rollout(config, None, engine, logs=Path(config.workflow).parent, say=print) as runner:
        await runner.run({"do": "has_a_child_and_blocks"}, 0)

anyio.run(main)
"""


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_no_worker_outlives_the_main_process(server_url: str, workflow: Path) -> None:
    config = settings(workflow).model_dump_json()
    command = [sys.executable, "-c", HOST, server_url, config]
    pids = workflow.parent / "pids"
    async with await anyio.open_process(command, cwd=ROOT, stdout=subprocess.DEVNULL) as host:
        await wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2, 100)
        worker, child = map(int, pids.read_text().split())
        host.kill()
    await wait_until(lambda: not psutil.pid_exists(worker) or psutil.Process(worker).status() == "zombie", 40)
    await wait_until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie", 40)


async def test_what_cannot_be_sent_to_a_worker_is_refused_before_work_starts(tmp_path: Path) -> None:
    workflow = tmp_path / "flow.py"
    workflow.write_text("async def run(episode): ...\n")
    config = settings(workflow).model_copy(update={"run_dir": str(tmp_path / "run"), "tasks": "-"})
    with pytest.raises(ConfigError, match="workflow"):
        await train(config, workflow=unused, tasks=[{"n": 1}])
    with pytest.raises(TaskFileError, match=r"task 1 .* 'when' \(tuple\)"):
        await train(config, tasks=[{"n": 1}, {"n": 2, "when": (1, 2)}])
    assert not (tmp_path / "run").exists()


async def test_beside_workers_the_port_of_the_proxy_is_that_of_the_metrics(
    workflow: Path, nano_format: ChatFormat
) -> None:
    config = settings(workflow)
    config = config.model_copy(update={"proxy": ProxyConfig(port=free_port())})
    view = RunView(config, steps=[{"step": 1, "tokens": 70, "episodes_running": 2}])
    async with (
        scripted_server(lambda body: []) as server,
        sglang_engine([server.url]) as engine,
        open_rollout(
            config,
            unused,
            engine,
            chat_format=nano_format,
            logs=workflow.parent,
            say=print,
            middleware=partial(metrics_of_run, config, view),
        ),
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{config.proxy.port}", trust_env=False) as http,
    ):
        shown = (await http.get("/metrics")).text
        assert (await http.get("/v1/models", headers={"Authorization": "Bearer sk"})).status_code == 401
    for name, value in (("step", 1), ("generated_tokens", 70), ("sessions_open", 2)):
        assert f'\nagentrl_{name}{{run=""}} {value}.0\n' in shown


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_workers_that_cannot_load_the_workflow_or_end_with_it_are_an_error_of_the_start(
    server_url: str, tmp_path: Path
) -> None:
    workflow = tmp_path / "flow.py"
    config = settings(workflow).model_copy(update={"run_dir": str(tmp_path / "run"), "tasks": "-"})
    workflow.write_text("import nothing_of_that_name\n")
    with pytest.raises(WorkerError, match=r"worker 0 cannot be started.*\n.*\n.*nothing_of_that_name"):
        async with workers(server_url, config, []):
            pass
    workflow.write_text("import os\nos._exit(3)\n")
    with pytest.raises(WorkerError, match="cannot be started: worker 0 ended with exit status 3"):
        async with workers(server_url, config, []):
            pass


async def test_a_task_or_a_result_that_cannot_be_sent_fails_its_episode_and_costs_no_worker(
    workflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(body: Any) -> Any:
        return list(sound_states(4, prompt_tokens=len(body["input_ids"])))

    async with scripted_server(answer) as server, workers(server.url, settings(workflow), []) as (runner, _):
        failed = await runner.run({"do": "sleeps", "when": (1, 2)}, 0)
        monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 4000)
        too_long = await runner.run({"do": "sleeps", "text": "x" * 4000}, 0)
        huge, finished = [(await run_all(runner, do))[0] for do in ("says_too_much", "makes_noise")]
        lost = runner.metrics()["workers_lost"]
    assert "the task cannot be sent to a worker process: its field 'when' (tuple)" in (failed.error or "")
    assert re.search(r"Run is 4,\d+ bytes long, and at most 4,000 pass.*make the task.*smaller", too_long.error or "")
    assert re.search(r"^EpisodeResult is \d+,\d+ bytes long, and at most 4,000 pass", huge.error or "")
    assert (too_long.reason, huge.reason) == ("worker", "worker")
    assert (finished.reason, finished.error, lost) == ("finished", None, 0)


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_a_nameless_signal_and_a_lack_of_descriptors_end_no_run(
    server_url: str, workflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    lacking = [OSError(errno.EMFILE, "Too many open files")] * 2
    pair = socket.socketpair

    def socketpair() -> Any:
        if len(said) == 2 and lacking:
            raise lacking.pop()
        return pair()

    monkeypatch.setattr(socket, "socketpair", socketpair)
    async with workers(server_url, settings(workflow), said) as (runner, _):
        failed, finished = [(await run_all(runner, do))[0] for do in ("is_signalled", "makes_noise")]
    assert said[0].startswith("worker 0 was killed by signal 40")
    assert "no worker of its own could be started" in (failed.error or "")
    assert "Too many open files" in (failed.error or "")
    assert (finished.reason, finished.error, lacking) == ("finished", None, [])
