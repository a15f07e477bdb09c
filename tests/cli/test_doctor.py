"""`agentrl doctor` tells what works, and what to do about the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.real_sandboxes import working_backend

AGENTRL = Path(sys.executable).with_name("agentrl")


def doctor(*options: str, **env: str) -> tuple[int, str]:
    import os

    done = subprocess.run(
        [AGENTRL, "doctor", *options],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "200", **env},
    )
    return done.returncode, done.stdout + done.stderr


def test_it_names_the_backend_in_use_and_its_holes() -> None:
    working_backend("bubblewrap")
    code, shown = doctor(DOCKER_HOST="unix:///nowhere.sock")
    assert code == 0
    assert "no Docker engine answers" in shown
    assert "DOCKER_HOST" in shown
    assert "sandbox.backend = auto takes bubblewrap with the embedded engine, bubblewrap with SGLang" in shown
    assert "holes of bubblewrap: " in shown
    assert "transformers 5." in shown


def test_without_a_backend_it_fails(tmp_path: Path) -> None:
    code, shown = doctor(DOCKER_HOST="unix:///nowhere.sock", PATH=str(tmp_path))
    assert code == 1
    assert "bubblewrap is not installed" in shown
    assert "no sandboxes: workflows that run model-written code will fail" in shown


def test_it_takes_no_configuration() -> None:
    code, shown = doctor("--trainer.optimizer.lr", "1")
    assert code == 2
    assert "Unknown option: --trainer.optimizer.lr" in shown
