"""Where the packages of an extra are not installed, what needs them says so before anything is started or written."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

from agentrl.models import NANO
from agentrl.system.imports import PACKAGES

WITHOUT = "import sys; sys.modules[sys.argv[1]] = None; from agentrl.cli.main import main; sys.exit(main(sys.argv[2:]))"
"""Python with a package hidden: it is found nowhere, and cannot be imported."""


pytestmark = pytest.mark.slow
INSTALL = f"{sys.executable} -m pip install -e '{Path(__file__).parents[2]}"
CALCULATOR = str(Path(__file__).parents[2] / "workflows" / "calculator.py")


def tasks_in(directory: Path) -> str:
    tasks = directory / "tasks.jsonl"
    tasks.write_text('{"question": "1 + 2", "answer": "3"}\n' * 8)
    return str(tasks)


def agentrl_without(package: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, package, *words, "--model", str(NANO), "--run-dir", "run"]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.parametrize("command", ["train", pytest.param("eval", marks=pytest.mark.soak), "sft"])
def test_a_command_names_the_extra_that_it_needs_and_leaves_nothing(tmp_path: Path, command: str) -> None:
    workflow = [] if command == "sft" else ["--workflow", CALCULATOR]
    ended = agentrl_without("torch", command, "--tasks", tasks_in(tmp_path), *workflow, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert f"needs torch: {INSTALL}[train]'" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.jsonl"]


def test_an_adapter_needs_peft(tmp_path: Path) -> None:
    words = "--tasks", tasks_in(tmp_path), "--workflow", CALCULATOR, "--trainer.lora.rank", "4"
    ended = agentrl_without("peft", "train", *words, cwd=tmp_path)
    assert ended.returncode == 2
    assert f"`trainer.lora` needs peft: {INSTALL}[lora]'" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.jsonl"]


def test_every_package_of_an_extra_is_one_that_can_be_installed_by_it() -> None:
    brought = {
        (re.split("[<>=;]", line)[0], line.rpartition("extra == ")[2].strip('"'))
        for line in requires("agentrl-sdk") or []
    }
    named = {"mlflow": "mlflow-skinny", "openenv": "openenv-core"}
    needed = {(named.get(name, name), extra) for extra, packages in PACKAGES.items() for name in packages.split()}
    assert needed <= brought
