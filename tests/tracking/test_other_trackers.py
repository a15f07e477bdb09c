"""W&B offline, MLflow's own server and trackio's folder have what a run gave them, of both its starts, in one run of theirs."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.system.host import free_port
from tests.components import missing
from tests.recorded_run import record_run
from tests.tracking.tracker_program import HOSTILE

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl" / "trackers" / "bin"
BOTH_STARTS = [[step, step / 8] for step in range(1, 6)] + [[step, 3 + step / 8] for step in range(4, 7)]
SAMPLES = [[[step, task, float(task), HOSTILE] for task in (2, 0, 1)] for step in (5, 6)]


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("mlflow")
    address = f"http://127.0.0.1:{free_port()}"
    words = [BIN / "mlflow", "server", "--host=127.0.0.1", f"--port={address.rpartition(':')[2]}", "--workers=1"]
    places = [f"--backend-store-uri=sqlite:///{folder}/db", f"--artifacts-destination={folder}/artifacts"]
    with (folder / "log").open("wb") as log:
        env = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        server = subprocess.Popen(
            [*words, *places], stdout=log, stderr=log, cwd=folder, env=env, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                with urllib.request.urlopen(f"{address}/health", timeout=10):
                    break
            except OSError:
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.2)
        yield address
    finally:
        os.killpg(server.pid, 9)
        server.wait()


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_tracker_has_both_starts_of_a_run_in_one_run(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not (BIN / "python").is_file():
        missing("the trackers are not installed: scripts/install_clients.sh")
    record_run(tmp_path / "run", steps=1)
    config = tmp_path / "run.toml"
    config.write_text(f'run_dir = "{tmp_path / "run"}"\nmodel = "some-model"\n')
    env = os.environ | {"PYTHONPATH": str(ROOT), "WANDB_MODE": "offline", "TRACKIO_DIR": str(tmp_path / "trackio")}
    if name == "mlflow":
        env["MLFLOW_TRACKING_URI"] = request.getfixturevalue("mlflow_server")
    program = [BIN / "python", ROOT / "tests" / "tracking" / "tracker_program.py", name, config]
    done = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "tracker " not in done.stderr, "it missed nothing"
    found: dict[str, Any] = json.loads(done.stdout)  # which is a command's own
    assert found["curve"] == BOTH_STARTS
    assert found["model"] == "some-model"
    assert found["samples"] == SAMPLES
    assert found["alarms"] == ["ALARM, step 5", "ALARM, step 6"]
    assert len(set(found["ids"])) == 1
    assert found.get("status", "FINISHED") == "FINISHED"
