"""Whole runs on a real Ray cluster of several nodes, as a user starts them: workers, servers and a rank on nodes, one of which dies."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs.calculator_env import distinct_tasks
from agentrl.models import NANO
from agentrl.run.audit import audit
from agentrl.run.run_directory import read_metrics
from tests.cluster.nodes import RAY_WARNINGS, of_a_node, open_nodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), *RAY_WARNINGS]

ROOT = Path(__file__).parents[2]
WORKFLOW = """
from pathlib import Path

import anyio
from calculator import run as play

HOLD = Path({hold!r})


async def run(episode):
    while HOLD.exists():
        await anyio.sleep(0.05)
    return await play(episode)
"""
"""Episodes that begin while there is a file wait until it is gone."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without room, and two nodes that take workers and servers."""
    with open_nodes(0, 4, 4) as opened:
        yield opened


def command(cluster: Any, folder: Path, steps: int, *more: str, each: int = 2) -> list[str]:
    """A run whose workflow's file, and the module that it imports, are nowhere but in its own folder. `each`: how many workers, and servers, it has."""
    work = folder / "work"
    work.mkdir()
    (work / "w.py").write_text(WORKFLOW.format(hold=str(folder / "hold")))
    shutil.copy(ROOT / "workflows" / "calculator.py", work)
    (work / "train.jsonl").write_text("".join(json.dumps(task) + "\n" for task in distinct_tasks(24, seed=1)))
    settings = {
        "tasks": work / "train.jsonl",
        "run_dir": folder / "run",
        "model.path": NANO,
        "steps": steps,
        "rollout.batch_size": 8,
        "rollout.group_size": 4,
        "rollout.max_concurrent": 4,
        "rollout.max_tokens": 48,
        "engine.servers": each,
        "rollout.workers": each,
        "cluster.address": cluster.address,
        "cluster.worker.resources.room": 1,
        "cluster.server.resources.room": 1,
    }
    options = [f"--{key}={value}" for key, value in settings.items()]
    return [sys.executable, "-m", "agentrl", "train", "w.py", *options, *more]


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(words, cwd=folder / "work", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(run: subprocess.Popen[str], timeout_s: float = 500) -> tuple[int, str]:
    try:
        said, _ = run.communicate(timeout=timeout_s)
    finally:
        run.kill()
    return run.returncode, said


@contextmanager
def held_after_step(run: subprocess.Popen[str], folder: Path, step: int) -> Iterator[None]:
    """Wait for a step, and let no more episodes begin for the length of the context: the run cannot end meanwhile."""
    deadline = time.monotonic() + 400
    while len(read_metrics(folder / "run")) < step:
        assert run.poll() is None, end(run)[1]
        assert time.monotonic() < deadline, "the run did not get that far"
        time.sleep(0.05)
    (folder / "hold").touch()
    try:
        yield
    finally:
        (folder / "hold").unlink()


def wait_for_line(run: subprocess.Popen[str], text: str) -> None:
    """Read what a run says up to a line with a text. A worker outlives its raylet until the main process notices."""
    assert run.stdout is not None
    assert any(text in line for line in run.stdout), "the run ended before"


def test_a_run_goes_on_when_the_node_of_its_worker_and_server_is_killed(tmp_path: Path) -> None:
    with open_nodes(0, 2) as cluster:
        run = start(command(cluster, tmp_path, 3, each=1), tmp_path)
        try:
            with held_after_step(run, tmp_path, 1):
                # SIGKILL of the raylet, without a word to anybody: its worker and its server go with it.
                cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
                wait_for_line(run, "its episodes go on elsewhere")
                cluster.add_node(**of_a_node(2))
            code, said = end(run)
        finally:
            run.kill()
    assert code == 0, said
    steps = read_metrics(tmp_path / "run")
    assert [row["step"] for row in steps] == [1, 2, 3]
    assert steps[-1]["workers_lost"] >= 1
    assert steps[-1]["engine_failures"] >= 1
    assert audit(tmp_path / "run").violations == []


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_run_goes_on_without_a_node_that_is_killed_and_uses_one_that_comes(cluster: Any, tmp_path: Path) -> None:
    run = start(command(cluster, tmp_path, 5), tmp_path)
    with held_after_step(run, tmp_path, 1):
        # SIGKILL of the raylet, without a word to anybody: its workers and its server go with it.
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        wait_for_line(run, "its episodes go on elsewhere")
        cluster.add_node(**of_a_node())
    code, said = end(run)
    assert code == 0, said
    steps = read_metrics(tmp_path / "run")
    assert len(steps) == 5
    assert steps[-1]["workers_lost"] >= 1
    assert steps[-1]["engine_failures"] >= 1
    assert audit(tmp_path / "run").violations == []


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_trainer_on_a_node_goes_on_elsewhere_when_that_is_killed_and_trains_to_the_bit_as_here(
    cluster: Any, tmp_path: Path
) -> None:
    node = cluster.add_node(**of_a_node(1, "trainer") | {"num_cpus": 4})
    run = start(command(cluster, tmp_path, 3, "--cluster.rank.resources.trainer=1"), tmp_path)
    with held_after_step(run, tmp_path, 1):
        cluster.remove_node(node, allow_graceful=False)
        node = cluster.add_node(**of_a_node(1, "trainer") | {"num_cpus": 4})
    code, said = end(run)
    cluster.remove_node(node)
    assert code == 0, said
    assert "starting the trainer again" in said
    assert len(read_metrics(tmp_path / "run")) == 3
    assert audit(tmp_path / "run").violations == []


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_cluster_that_is_too_small_is_named_before_anything_starts(cluster: Any, tmp_path: Path) -> None:
    words = command(cluster, tmp_path, 1, "--cluster.server.num_gpus=4")
    code, said = end(start(words, tmp_path))
    assert code == 2, said
    assert "the run needs 8 GPUs (2 x 4 of EngineServer), the cluster has 0" in " ".join(said.split())
