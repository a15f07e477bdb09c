"""Traces of whole runs, and what Prometheus reads meanwhile: a real collector, one that hangs, the real commands."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agentrl.envs.calculator_env import distinct_tasks
from agentrl.models import NANO
from agentrl.run.open_run import open_run
from agentrl.system.host import free_port
from tests.components import missing
from tests.run.test_train import ROOT, environment

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]
PHOENIX = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl" / "phoenix" / "bin" / "phoenix"


def answered(url: str) -> bytes:
    """What a server of this machine answers; empty while it does not."""
    try:
        with urllib.request.urlopen(url, timeout=20) as reply:
            content: bytes = reply.read()
            return content
    except OSError:
        return b""


@pytest.fixture
def phoenix(tmp_path: Path) -> Iterator[str]:
    """The address of a collector that people use."""
    if not PHOENIX.exists():
        missing("phoenix is not installed: scripts/install_clients.sh")
    port = free_port()
    own = {"PHOENIX_HOST": "127.0.0.1", "PHOENIX_PORT": str(port), "PHOENIX_GRPC_PORT": str(free_port())}
    own |= {"PHOENIX_WORKING_DIR": str(tmp_path / "phoenix"), "PHOENIX_TELEMETRY_ENABLED": "false"}
    with (tmp_path / "phoenix.log").open("wb") as log:
        process = subprocess.Popen([PHOENIX, "serve"], env={**os.environ, **own}, stdout=log, stderr=log)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 120
    while not answered(f"{url}/healthz"):
        assert process.poll() is None, (tmp_path / "phoenix.log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    yield url
    process.terminate()
    process.wait(60)


def spans_in(phoenix: str) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": 100}
    while query.get("cursor", "first"):
        found = json.loads(answered(f"{phoenix}/v1/projects/default/spans?{urlencode(query)}"))
        spans += found["data"]
        query["cursor"] = found["next_cursor"]
    return spans


@contextmanager
def training(tmp_path: Path, collector: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """A run of two steps, whose traces go to a collector."""
    run_dir, tasks = tmp_path / "run", tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(task) + "\n" for task in distinct_tasks(24, seed=1)))
    settings = {"tasks": tasks, "run_dir": run_dir, "model.path": NANO, "steps": 2, **settings}
    settings |= {"rollout.batch_size": 8, "rollout.group_size": 4, "rollout.max_tokens": 32}
    words = [sys.executable, "-m", "agentrl", "train", "workflows/calculator.py"]
    env = {**environment(run_dir), "OTEL_EXPORTER_OTLP_ENDPOINT": collector}
    options: Any = {"cwd": ROOT, "env": env, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([*words, *(f"--{key}={value}" for key, value in settings.items())], **options) as process:
        yield process


def test_a_collector_has_every_episode_of_workers_with_its_calls_and_every_step(tmp_path: Path, phoenix: str) -> None:
    with training(tmp_path, phoenix, **{"rollout.workers": 2}) as process:
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    deadline = time.monotonic() + 60  # it takes in what it is sent a moment later
    while sum(one["name"] == "training step" for one in spans_in(phoenix)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    spans = spans_in(phoenix)
    name = {one["context"]["span_id"]: one["name"] for one in spans}
    lines = Counter((one["name"], name.get(one["parent_id"])) for one in spans)
    assert lines["training step", None] == lines["trainer", "training step"] == 2
    assert lines["weight update", "training step"] == 2
    ended = list(open_run(tmp_path / "run").episodes(reason="finished"))
    finished = [one for one in spans if one["attributes"].get("agentrl.reason") == "finished"]
    assert len(finished) >= len(ended) >= 16
    replies = {turn.completion_id for one in ended for turn in one.record.turns}
    assert replies <= {one["attributes"].get("gen_ai.response.id") for one in spans}
    assert {parent for span, parent in lines if span in ("chat nano", "execute_tool calculator")} == {
        "invoke_agent calculator"
    }


def test_a_run_goes_on_whose_collector_hangs_and_prometheus_reads_it(tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as hangs:  # connections are taken, and never answered
        collector = f"http://127.0.0.1:{hangs.getsockname()[1]}"
        with training(tmp_path, collector, **{"proxy.port": port, "steps": 6}) as process:
            seen: set[str] = set()
            while process.poll() is None:
                text = answered(f"http://127.0.0.1:{port}/metrics").decode()
                seen |= {one.name for family in text_string_to_metric_families(text) for one in family.samples}
                time.sleep(0.1)
            said = process.stdout.read() if process.stdout else ""
    assert process.returncode == 0, said
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 6
    assert said.count("traces are lost") + said.count("the last traces are lost") >= 1
    assert {"agentrl_step", "agentrl_reward_mean", "agentrl_episodes_running", "agentrl_generated_tokens"} <= seen
