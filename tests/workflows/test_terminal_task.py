"""Terminal tasks from their folder to their reward, on a real Docker engine: solved, left alone, cut off, graded apart, vetted."""

from __future__ import annotations

import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.config import RunConfig
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.run_episode import EpisodeRunner, remote_runner
from agentrl.tasks.tasks import list_tasks
from agentrl.testing import ScriptedModel, ToolCall
from agentrl.workflows import terminal_task
from agentrl.workflows.terminal_task import read_reward
from agentrl.workflows.vet_agent_tasks import vet_agent_task
from tests.sandboxes.test_container import docker, left
from tests.workflows.test_harness import SHELL

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("docker"), pytest.mark.timeout(180)]
FOLDERS = Path(__file__).parent / "terminal_tasks"
GREETING, WORD_COUNT = FOLDERS / "greeting", FOLDERS / "word_count"
SOLVE = 'echo "Hello, world!" > /app/hello.txt'
PACKAGE = """FROM agentrl/sandbox
RUN mkdir -p /tmp/it/DEBIAN /tmp/it/usr/bin && printf 'Package: greet\\nVersion: 1\\nArchitecture: all\\nMaintainer: it\\nDescription: it\\n' > /tmp/it/DEBIAN/control \\
 && printf '#!/bin/sh\\necho "Hello, world!"\\n' > /tmp/it/usr/bin/greet && chmod 755 /tmp/it/usr/bin/greet && dpkg-deb -b /tmp/it /opt/greet.deb
WORKDIR /app
COPY name.txt /app/name.txt
"""
TESTS = "#!/bin/sh\nmkdir -p /logs/verifier\n"


@asynccontextmanager
async def runner(model: ScriptedModel) -> AsyncIterator[EpisodeRunner]:
    config = RunConfig.model_validate({"rollout": {"max_concurrent": 1}})
    async with (
        model.serve() as url,
        open_run_sandboxes(config) as sandboxes,
        remote_runner(
            terminal_task.run, base_url=url, api_key="-", model="scripted", timeout_s=120, sandboxes=sandboxes
        ) as opened,
    ):
        yield opened
    assert await in_thread(left) == []


async def task(folder: Path, **changes: Any) -> dict[str, Any]:
    (found,) = await in_thread(list_tasks, f"harbor:{folder}")
    return {**found, **changes}


def variant(tmp_path: Path, **files: str) -> Path:
    """A greeting with other files, by their names with __ for / and _ for the dot."""
    folder = tmp_path / "greeting"
    shutil.copytree(GREETING, folder)
    for path, text in files.items():
        name = path.replace("__", "/")
        for ending in ("sh", "toml", "md"):
            name = name.replace(f"_{ending}", f".{ending}")
        (folder / name).write_text(text)
    return folder


def shell(*commands: str) -> ScriptedModel:
    return ScriptedModel(*(ToolCall("shell", {"command": command}) for command in commands), "Done.")


async def test_an_agent_installs_a_package_and_the_tests_find_it_and_none_of_its_processes(tmp_path: Path) -> None:
    tests = (
        TESTS
        + "grep -al ^sleep.4321 /proc/[0-9]*/cmdline && exit 1\ngreet > hello.txt && python3 -m pytest -q /tests && echo 1 > /logs/verifier/reward.txt\n"
    )
    folder = await in_thread(lambda: variant(tmp_path, environment__Dockerfile=PACKAGE, tests__test_sh=tests))
    model = shell("dpkg -i /opt/greet.deb; pwd; ls /tests /solution", "sleep 4321 > /dev/null 2>&1 & echo begun")
    async with runner(model) as opened:
        done = await opened.run(await task(folder), 0)
    assert (done.error, done.reward) == (None, 1.0)
    played = {"turns": 3.0, "failed_turns": 0.0, "truncated": 0.0}
    assert done.metrics == {**played, "timed_out": 0.0, "files_lost": 0.0, "no_reward": 0.0}
    messages = model.requests[-1]["messages"]
    assert messages[1]["content"] == (GREETING / "instruction.md").read_text()
    installed, begun = [one["content"] for one in messages if one["role"] == "tool"]
    assert "/app\n" in installed
    assert installed.count("No such file or directory") == 2
    assert begun == "[exit code 0]\nbegun\n"


@pytest.mark.parametrize(
    ("does", "reward", "metric"),
    [
        ("echo 3 > /srv/data/count.txt", 0.5, None),
        pytest.param("true", 0.0, None, marks=pytest.mark.soak),
        (
            "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json; mkdir /tests",
            0.0,
            None,
        ),
        ("rm -rf /bin /usr /lib; true", 0.0, "files_lost"),
        ("rm /usr/bin/python3*", 0.0, "no_reward"),
    ],
)
async def test_what_is_left_decides(does: str, reward: float, metric: str | None) -> None:
    async with runner(shell(f"mkdir -p /logs/verifier; {does}")) as opened:
        done = await opened.run(await task(WORD_COUNT), 0)
    assert (done.error, done.reward) == (None, reward)
    assert metric is None or done.metrics[metric] == 1.0


async def test_an_agent_whose_time_is_up_is_graded_by_what_it_left(tmp_path: Path) -> None:
    settings = (GREETING / "task.toml").read_text().replace("[agent]\ntimeout_sec = 60.0", "[agent]\ntimeout_sec = 4")
    folder = await in_thread(lambda: variant(tmp_path, task_toml=settings))
    async with runner(ScriptedModel(lambda _: f"{SOLVE}; sleep 60")) as opened:
        done = await opened.run(await task(folder, agent=SHELL), 0)
    assert (done.error, done.reward, done.metrics["timed_out"]) == (None, 1.0, 1.0)


async def test_a_verifier_whose_time_is_up_pays_no_0(tmp_path: Path) -> None:
    settings = (GREETING / "task.toml").read_text().replace("timeout_sec = 30.0", "timeout_sec = 2")
    slow = TESTS + "echo 1 > /logs/verifier/reward.txt; echo begun; sleep 60\n"
    folder = await in_thread(lambda: variant(tmp_path, task_toml=settings, tests__test_sh=slow))
    async with runner(shell("true")) as opened:
        done = await opened.run(await task(folder), 0)
    assert not done.finished
    assert "did not end within verifier.timeout_sec = 2; raise it: begun" in (done.error or "")


def kill_all() -> None:
    for container in left():
        docker("kill", container)


async def test_a_container_that_dies_fails_the_episode() -> None:
    def says(request: Any) -> Any:
        threading.Thread(target=kill_all).start()
        return ToolCall("shell", {"command": "sleep 60"})

    async with runner(ScriptedModel(says)) as opened:
        done = await opened.run(await task(GREETING), 0)
    assert not done.finished
    assert "the container of agentrl/task" in (done.error or "")


async def test_a_separate_verifier_sees_the_declared_artifacts_alone(tmp_path: Path) -> None:
    """What the agent does to Python in its own image is not there."""
    settings = (
        'artifacts = ["/app/hello.txt", {source = "/app/name.txt"}, "/not/there"]\n'
        + (GREETING / "task.toml").read_text()
    )
    settings = settings.replace("[verifier]", '[verifier]\nenvironment_mode = "separate"')
    dockerfile = "FROM agentrl/sandbox\nRUN touch /of-the-verifier\nWORKDIR /app\n"
    script = (
        TESTS
        + "test -e /of-the-verifier || exit 1\ntest -e /app/other && exit 1\npython3 -m pytest -q /tests && echo 1 > /logs/verifier/reward.txt\n"
    )
    files = {"task_toml": settings, "tests__Dockerfile": dockerfile, "tests__test_sh": script}
    folder = await in_thread(lambda: variant(tmp_path, **files))
    steer = "echo 'import os; os._exit(0)' > /usr/lib/python3/dist-packages/pytest.py; touch /app/other"
    for does, reward in ((f"{SOLVE}; touch /app/other", 1.0), (steer, 0.0)):
        async with runner(shell(does)) as opened:
            done = await opened.run(await task(folder), 0)
        assert (done.error, done.reward) == (None, reward)


async def test_vetting_tries_the_reference_and_doing_nothing(tmp_path: Path) -> None:
    cases = {
        "sound": ({}, ()),
        "free": ({"tests__test_sh": TESTS + "echo 1 > /logs/verifier/reward.txt\n"}, ("free",)),
        "wrong": ({"solution__solve_sh": "#!/bin/sh\necho no such thing\n"}, ("reference_fails",)),
        "silent": ({"tests__test_sh": "#!/bin/sh\nexit 3\n"}, ("reference_fails",)),
        "nonsense": ({"tests__test_sh": TESTS + "echo many > /logs/verifier/reward.txt\n"}, ("reference_fails",)),
    }
    reports = {}
    for name, (files, _) in cases.items():
        folder = await in_thread(lambda name=name, files=files: variant(tmp_path / name, **files))
        reports[name] = await vet_agent_task(await task(folder), image="agentrl/sandbox", runs=1)
    found = {name: tuple(fault.kind.value for fault in report.faults) for name, report in reports.items()}
    assert found == {name: kinds for name, (_, kinds) in cases.items()}
    assert "no such thing" in reports["wrong"].faults[0].detail
    assert "test.sh ended with exit code 3 and left no reward in /logs/verifier" in reports["silent"].faults[0].detail
    assert "which is no reward from 0 to 1: " in reports["nonsense"].faults[0].detail
    assert await in_thread(left) == []


@pytest.mark.parametrize(
    ("written", "value"), [(" 0.25\n", 0.25), (".50", 0.5), ('{"reward": 1, "speed": 7}', 1.0), ("0", 0.0)]
)
def test_a_reward_is_a_number_from_0_to_1(written: str, value: float) -> None:
    assert read_reward(written.encode()) == value


@pytest.mark.parametrize("written", ["", "yes", "NaN", "2", "-1", "null", "{}", '{"reward": [1]}', "1" * 400, "1e999"])
def test_nonsense_is_no_reward(written: str) -> None:
    with pytest.raises((ValueError, TypeError, LookupError, ArithmeticError)):
        read_reward(written.encode())
