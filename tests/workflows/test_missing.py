"""What tasks need and is not there is one error before a run, and none of it is found by episodes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread

import agentrl
from agentrl.cli.main import main
from agentrl.config import RunConfig
from agentrl.errors import TaskFileError
from agentrl.models import NANO
from agentrl.rollout.check_start import SHOWN
from agentrl.sandboxes import BackendName
from agentrl.sandboxes.backends.docker_images import missing_images
from agentrl.sandboxes.sandbox import DEFAULT_IMAGE
from agentrl.tasks.tasks import list_tasks
from agentrl.testing import ScriptedModel
from tests.workflows.test_harness import task as harness_task
from tests.workflows.test_swe_rows import git
from tests.workflows.test_terminal_task import GREETING

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
NOWHERE = "agentrl.invalid/not-there:1"
GIVEN = {"files": {"a.py": ""}}


async def refused(workflow: str, tasks: Sequence[dict[str, Any]], backend: str = "auto", **sandbox: str) -> str:
    """Return the error with which an evaluation is refused, whose model is never asked."""
    asked: list[Any] = []
    config = RunConfig.model_validate({"model": {"path": "m"}, "sandbox": {"backend": backend, **sandbox}})
    async with ScriptedModel(lambda request: asked.append(request) or "").serve() as url:
        with pytest.raises(TaskFileError) as refusal:
            await agentrl.evaluate(config, workflow=ROOT / "workflows" / f"{workflow}.py", tasks=tasks, base_url=url)
    assert asked == []
    return str(refusal.value)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "repository").mkdir()
    git(tmp_path / "repository", "init", "-q")
    git(tmp_path / "repository", "commit", "-q", "--allow-empty", "-m", "start")
    return tmp_path / "repository"


@pytest.mark.filterwarnings("ignore:.*latest versioned environment")
@pytest.mark.parametrize(
    ("env", "make", "complaint"),
    [
        ("NoSuchEnvironment-v0", {}, "Environment `NoSuchEnvironment` doesn't exist"),
        ("no_such_module:Guess-v0", {}, "No module named 'no_such_module'"),
        ("no_such_file.py:Guess", {}, "No such file"),
        ("CliffWalking-v1", {"slipery": True}, "unexpected keyword argument 'slipery'"),
        ("agentrl/Gym-v0", {"env": "FrozenLake-v1", "action_names": ["up"]}, "action_names = ['up']: name each action"),
    ],
)
async def test_an_environment_that_cannot_be_made_is_found_before_a_run(env: str, make: Any, complaint: str) -> None:
    fault = await refused("tool_loop", [{"env": "FrozenLake-v1"}, {"env": "FrozenLake"}, {"env": env, "make": make}])
    assert fault.endswith(f"(env = {env!r}, make = {make})")
    assert complaint in fault


async def test_a_repository_that_is_not_there_is_found_before_a_run(
    tmp_path: Path, repository: Path, bubblewrap: BackendName
) -> None:
    there = harness_task(repository={"git": str(repository)})
    gone, old = {"git": str(repository), "commit": "0" * 40}, {"git": str(tmp_path / "git")}
    for named, told in (
        ("no/such/folder", r"repository = 'no/such/folder': there is no such folder in "),
        (gone, f"repository.git = '{repository}', commit = '{'0' * 40}': fatal: Not a valid object name"),
        (old, f"repository.git = '{tmp_path / 'git'}', commit = 'HEAD': "),
    ):
        assert told in await refused("harness", [there, harness_task(repository=named)], bubblewrap)
    several = [harness_task(repository=f"no/folder{index}") for index in range(SHOWN + 2)]
    told = await refused("harness", [there, *several], bubblewrap)
    assert f"{SHOWN + 2} things that the tasks need are missing. The first {SHOWN}:\n- repository" in told
    assert told.count("\n- ") == SHOWN


async def test_git_that_is_not_there_is_found_before_a_run(
    tmp_path: Path, repository: Path, bubblewrap: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bwrap").symlink_to(str(shutil.which("bwrap")))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    tasks = [harness_task(repository={"git": str(repository)}), harness_task()]
    assert "git is not installed on this machine" in await refused("harness", tasks, bubblewrap)


async def test_a_docker_engine_that_is_not_there_is_found_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    remedy = "start one, or set DOCKER_HOST"
    folders = await in_thread(list_tasks, f"harbor:{GREETING}")
    for workflow, tasks in (("terminal_task", folders), ("harness", [harness_task()])):
        told = await refused(workflow, tasks)
        assert "the images of the tasks run on a Docker engine, and there is none: no Docker engine answers" in told
        assert remedy in told


async def test_an_image_of_programs_that_is_nowhere_is_found_before_a_run(docker: BackendName) -> None:
    tasks = [{"prompt": "Add.", "tests": [{"kind": "io", "stdout": "1"}]}]
    told = await refused("code", tasks, docker, image=NOWHERE)
    assert f"the image {NOWHERE} is not here, and the engine cannot pull it" in told
    told = await refused("code", [*tasks, {**tasks[0], "limits": {"memory_mb": 1024}}], docker)
    assert told.startswith("memory_mb = 1024 is more than the 512 of the sandbox; ask for less, or make the sandbox")


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_an_image_that_is_nowhere_is_found_before_a_run(docker: BackendName, tmp_path: Path) -> None:
    tasks = [harness_task(name="here"), harness_task(name="there", image=NOWHERE), harness_task(image=NOWHERE)]
    told = await refused("harness", tasks, docker)
    assert f"the image '{NOWHERE}', which the task there names, is neither on the Docker engine nor to be had" in told
    assert await missing_images({DEFAULT_IMAGE: "here"}) == []
    folder = tmp_path / "greeting"
    await in_thread(shutil.copytree, GREETING, folder)
    await in_thread((folder / "environment" / "Dockerfile").unlink)
    settings = await in_thread((folder / "task.toml").read_text)
    named = settings.replace("[environment]", f'[environment]\ndocker_image = "{NOWHERE}"')
    assert named != settings
    await in_thread((folder / "task.toml").write_text, named)
    folders = await in_thread(list_tasks, f"harbor:{folder}")
    assert f"the image '{NOWHERE}', which the task greeting names" in await refused("terminal_task", folders)
    await in_thread((folder / "instruction.md").write_text, "Another.")
    assert "greeting has changed since its tasks were read" in await refused("terminal_task", folders)
    await in_thread(shutil.rmtree, folder)
    assert str(folder) in await refused("terminal_task", folders)


def test_a_training_run_is_refused_before_it_has_a_directory(
    tmp_path: Path, bubblewrap: BackendName, capsys: pytest.CaptureFixture[str]
) -> None:
    file, held_out = tmp_path / "tasks.jsonl", tmp_path / "held_out.jsonl"
    file.write_text(json.dumps(harness_task()) + "\n")
    held_out.write_text(json.dumps(harness_task(repository="no/such/folder")) + "\n")
    given = ["train", str(ROOT / "workflows" / "harness.py"), "--tasks", str(file), "--eval.tasks", str(held_out)]
    given += ["--model", str(NANO), "--run-dir", str(tmp_path / "run"), "--sandbox.backend", str(bubblewrap)]
    assert main(given) == 2
    assert "repository = 'no/such/folder': there is no such folder" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
