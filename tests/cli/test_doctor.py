"""`agentrl doctor` tells what works, and what to do about the rest."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from agentrl.cli.main import main
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
    assert "bubblewrap     works here; its holes: " in shown
    assert {"GPUs", "trainer", "SGLang", "Ray", "environments"} <= {line.split(" ")[0] for line in shown.splitlines()}
    assert "transformers 5." in shown


def test_what_is_missing_comes_with_the_command_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agentrl.cli.setup.find_version", missing)
    main(["doctor"])
    folder = Path(__file__).parents[2]
    assert f"ray is missing: {sys.executable} -m pip install -e '{folder}[cluster]'" in capsys.readouterr().out


def missing(package: str) -> str:
    raise PackageNotFoundError(package)


def test_without_a_backend_it_fails(tmp_path: Path) -> None:
    code, shown = doctor(DOCKER_HOST="unix:///nowhere.sock", PATH=str(tmp_path))
    assert code == 1
    assert "bubblewrap is not installed" in shown
    assert "no sandboxes: workflows that run model-written code will fail" in shown


def test_it_takes_no_configuration() -> None:
    code, shown = doctor("--trainer.optimizer.lr", "1")
    assert code == 2
    assert "Unknown option: --trainer.optimizer.lr" in shown
