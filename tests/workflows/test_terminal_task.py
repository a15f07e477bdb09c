"""Terminal tasks from their folder to their reward, on a real Docker engine: solved, left alone, cheated, vetted."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.cli.vet import vet
from agentrl.config import RunConfig
from agentrl.errors import SandboxError, TaskFileError
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.outcome import Outcome
from agentrl.rollout.run_episode import EpisodeRunner, remote_runner
from agentrl.rollout.task_folders import read_task_folder
from agentrl.rollout.tasks import list_tasks
from agentrl.sandboxes import BackendName
from agentrl.sandboxes.grading.vet import FaultKind, TaskReport
from agentrl.sandboxes.task_image import TaskImage
from agentrl.testing import ScriptedModel, ToolCall
from agentrl.workflows import terminal_task
from agentrl.workflows.links_to_tests import links_out
from agentrl.workflows.task_verifier import OpenTask, open_task, pytest_reward, reward_of, steers_tests
from agentrl.workflows.vet_terminal import vet_terminal_tasks
from tests.workflows.test_harness import SHELL

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]
FOLDERS = Path(__file__).parent / "terminal_tasks"
GREETING, WORD_COUNT = FOLDERS / "greeting", FOLDERS / "word_count"
SOLVE = 'echo "Hello, world!" > /app/hello.txt'


@asynccontextmanager
async def runner(model: ScriptedModel, backend: BackendName = "docker") -> AsyncIterator[EpisodeRunner]:
    config = RunConfig.model_validate({"sandbox": {"backend": backend, "leases": 2}})
    async with (
        model.serve() as url,
        open_run_sandboxes(config) as sandboxes,
        remote_runner(
            terminal_task.run, base_url=url, api_key="-", model="scripted", timeout_s=120, sandboxes=sandboxes
        ) as opened,
    ):
        yield opened


async def task(folder: Path, **changes: Any) -> dict[str, Any]:
    (found,) = await in_thread(list_tasks, f"harbor:{folder}")
    return {**found, **changes}


def variant(tmp_path: Path, name: str, **files: str | None) -> Path:
    """A greeting with other files, by their names with __ for /, and of the same image."""
    folder = tmp_path / name
    shutil.copytree(GREETING, folder)
    for path, text in files.items():
        file = folder / path.replace("__", "/").replace("_sh", ".sh")
        file.unlink()
        if text is not None:
            file.write_text(text)
    return folder


async def test_an_agent_with_a_shell_solves_a_task(docker: BackendName) -> None:
    model = ScriptedModel(
        ToolCall("shell", {"command": "cat name.txt; pwd; ls /tests/ /solution/; exit 3"}),
        [
            ToolCall("shell", '{"comand": 1}'),
            ToolCall("shell", {"command": '(sleep 60 &) ; echo "$GREETING, world!" > hello.txt'}),
        ],
        "Done.",
    )
    async with runner(model) as opened:
        done = await opened.run(await task(GREETING), 0)
    assert (done.error, done.reward) == (None, 1.0)
    assert done.metrics == {"timed_out": 0.0, "files_lost": 0.0, "no_reward": 0.0, "verifier_timed_out": 0.0}
    messages = model.requests[-1]["messages"]
    assert messages[1]["content"] == (GREETING / "instruction.md").read_text()
    looked, wrong, wrote = [one["content"] for one in messages if one["role"] == "tool"]
    assert looked.startswith("[exit code 3]\nworld\n/app\n")
    assert looked.count("No such file or directory") == 2
    assert "its arguments are" in wrong
    assert wrote == "[exit code 0]\n"


async def test_a_share_of_the_reward_is_for_a_share_of_the_work(docker: BackendName) -> None:
    says = "echo 3 > /srv/data/count.txt"
    async with runner(ScriptedModel(lambda request: says)) as opened:
        done = await opened.run(await task(WORD_COUNT, agent=SHELL), 0)
        assert (done.error, done.reward) == (None, 0.5)


CHEATS = {
    "a reward that is there already": "mkdir -p /sandbox/logs/verifier; cd /logs/verifier; echo 1 > reward.txt; echo '{\"reward\": 1}' > reward.json",
    "a process that writes the reward": "(setsid sh -c 'while :; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; done' &)",
    "a process that waits for the tests": f"(setsid sh -c 'while ! [ -e /tests/test.sh ]; do :; done; {SOLVE}' &)",
    "tests of its own": "mkdir -p /sandbox/tests; printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod +x /tests/test.sh",
    "a conftest and settings of pytest": "printf 'import os\\nos._exit(0)\\n' | tee conftest.py sitecustomize.py; printf '[pytest]\\naddopts = --co' > pytest.ini",
    "modules of the tests' names": "printf 'import os\\nos._exit(0)\\n' | tee pytest.py pathlib.py json.py; mkdir _pytest; cp pytest.py _pytest/__init__.py",
    "programs of the tests' names": "printf '#!/bin/sh\\nexit 0' | tee python3 pytest /usr/local/bin/python3; chmod +x python3 pytest",
    "packages in its home": "D=$HOME/.local/lib/python3.11/site-packages; mkdir -p $D; printf 'import os\\nos._exit(0)\\n' > $D/usercustomize.py",
    "a folder that leads to the tests": "cd /; mv /sandbox/app /sandbox/old; ln -s tests /sandbox/app",
    "a folder that leads to the reward": "cd /; rm -r /sandbox/app; ln -s logs/verifier /sandbox/app; mkdir -p /sandbox/logs/verifier; echo 1 > /app/reward.txt",
    "a link to what the tests expect": "ln -s /tests/expected.txt hello.txt",
    "files that cannot be read": f"{SOLVE}; chmod 000 hello.txt; mkfifo pipe",
    "more than there is room for": f"{SOLVE}; head -c 34000000 /dev/zero > zeros",
}


async def test_a_cheat_earns_nothing(docker: BackendName) -> None:
    says = ""
    async with runner(ScriptedModel(lambda request: says)) as opened:
        given = await task(GREETING, agent=SHELL)
        for cheat, command in CHEATS.items():
            says = command
            done = await opened.run(given, 0)
            assert (done.error, done.reward) == (None, 0.0), cheat
        says = f"touch json.py; {SOLVE}"
        assert (await opened.run(given, 0)).reward == 1.0


async def test_nonsense_is_no_reward(docker: BackendName, tmp_path: Path) -> None:
    async def outcome(name: str, script: str) -> Outcome:
        folder = variant(tmp_path, name, tests__test_sh=f"#!/bin/sh\n{script}\n")
        return await opened.run(await task(folder, agent=SHELL), 0)

    async with runner(ScriptedModel(lambda request: SOLVE)) as opened:
        done = await outcome("large", "echo 2 > /logs/verifier/reward.txt")
        assert "the verifier of large left '2' in reward.txt: a reward is a number from 0 to 1" in (done.error or "")
        done = await outcome("json", "echo 1 > /logs/verifier/reward.txt; echo '{' > /logs/verifier/reward.json")
        assert "in reward.json" in (done.error or "")
        done = await outcome("none", "exit 0")
        assert (done.error, done.reward, done.metrics["no_reward"]) == (None, 0.0, 1.0)
        folder = variant(tmp_path, "changed", tests__test_sh="#!/bin/sh\n")
        given = await task(folder, agent=SHELL)
        (folder / "tests" / "more.txt").write_text("")
        assert "has changed since its tasks were read" in ((await opened.run(given, 0)).error or "")


async def test_sandboxes_without_images_are_refused(bubblewrap: BackendName, docker: BackendName) -> None:
    async with runner(ScriptedModel("Done."), bubblewrap) as opened:
        done = await opened.run(await task(GREETING), 0)
    assert "is an image of Docker; it needs backend = 'docker'" in (done.error or "")


async def test_vetting_names_each_task_that_is_not_sound(docker: BackendName, tmp_path: Path) -> None:
    always = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"
    once = "#!/bin/sh\ncase $(od -An -N1 -tu1 /dev/urandom) in *[02468]) echo Hello, world! > /app/hello.txt;; esac\n"
    exists = "#!/bin/sh\ntest -s /app/hello.txt && echo 1 > /logs/verifier/reward.txt\n"
    runs_planted = "#!/bin/sh\nPATH=/app:$PATH pytest /tests\n"
    faults = {
        "free": (FaultKind.FREE, variant(tmp_path, "free", tests__test_sh=always)),
        "none": (FaultKind.NO_REFERENCE, variant(tmp_path, "none", solution__solve_sh=None)),
        "fails": (FaultKind.REFERENCE_FAILS, variant(tmp_path, "fails", solution__solve_sh="#!/bin/sh\nexit 1\n")),
        "silent": (FaultKind.REFERENCE_FAILS, variant(tmp_path, "silent", tests__test_sh="#!/bin/sh\n")),
        "cheated": (FaultKind.REFERENCE_FAILS, variant(tmp_path, "cheated", tests__test_sh=runs_planted)),
    }
    broken = variant(tmp_path, "broken")
    (broken / "environment" / "Dockerfile").write_text(
        "FROM agentrl/sandbox\nRUN echo why it fails && false\nWORKDIR /app\n"
    )
    faults["broken"] = (FaultKind.UNSUPPORTED, broken)
    given = [await task(folder) for _, folder in faults.values()]
    reports = await vet_terminal_tasks([*given, {"folder": str(tmp_path), "prompt": "x", "digest": ""}], runs=1)
    found: dict[str, TaskReport] = {report.name: report for report in reports[:-1]}
    assert {name: report.faults[0].kind for name, report in found.items()} == {
        name: kind for name, (kind, _) in faults.items()
    }
    assert "why it fails" in found["broken"].faults[0].detail
    assert "it is rewarded with 0" in found["fails"].faults[0].detail
    assert "the verifier gave no reward" in found["silent"].faults[0].detail
    assert [fault.kind for fault in found["cheated"].faults[1:]] == [FaultKind.CHEATER]
    assert reports[-1].faults[0].kind is FaultKind.UNREADABLE
    flaky = variant(tmp_path, "flaky", solution__solve_sh=once, tests__test_sh=exists)
    (report,) = await vet_terminal_tasks([await task(flaky)], runs=16)
    assert report.faults[0].kind is FaultKind.FLAKY


def test_the_command_vets_a_folder_of_tasks(
    docker: BackendName, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert vet(f"harbor:{FOLDERS}", runs=1, as_json=True, report=tmp_path / "report.json") == 0
    assert '"kept": 2' in capsys.readouterr().out


async def test_the_older_form_is_run_too(docker: BackendName, tmp_path: Path) -> None:
    folder = tmp_path / "older"
    shutil.copytree(GREETING / "environment", folder)
    shutil.copytree(GREETING / "tests", folder / "tests", ignore=shutil.ignore_patterns("test.sh"))
    (folder / "task.yaml").write_text(
        "instruction: |-\n  Greet.\nparser_name: pytest\nmax_agent_timeout_sec: 60\nmax_test_timeout_sec: 30\n"
    )
    (folder / "run-tests.sh").write_text(
        "set -o pipefail\npushd $TEST_DIR\nexec python3 -m pytest -rA -p no:cacheprovider test_outputs.py\n"
    )
    (folder / "solution.sh").write_text(f"[[ -d . ]] || exit 1\n{SOLVE}\n")
    (report,) = await vet_terminal_tasks([await task(folder)], runs=1)
    assert report.kept, report.faults


async def test_an_image_is_built_in_its_time_and_once(
    docker: BackendName, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    slow = variant(tmp_path, "slow")
    settings = (slow / "task.toml").read_text()
    (slow / "task.toml").write_text(settings.replace("build_timeout_sec = 120.0", "build_timeout_sec = 0.5"))
    (slow / "environment" / "Dockerfile").write_text("FROM agentrl/sandbox\nRUN sleep 100\n")
    with pytest.raises(
        SandboxError,
        match=r"the image of the task slow: it was not built in time; raise environment\.build_timeout_sec",
    ):
        await open_task(slow)
    await open_task(GREETING)
    capfd.readouterr()
    opened = [await open_task(variant(tmp_path, name, tests__test_sh="")) for name in ("one", "two")]
    assert opened[0].image == opened[1].image
    assert "building" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("workdir", "complaint"),
    [
        ("/tmp/work", "/tmp/work "),
        ("/usr", "/usr .*such as /app"),
        ("/tests/here", "is where the verifier finds its tests"),
    ],
)
async def test_a_folder_that_nobody_can_write_to_is_named(
    docker: BackendName, tmp_path: Path, workdir: str, complaint: str
) -> None:
    folder = variant(tmp_path, "elsewhere")
    settings = (folder / "task.toml").read_text()
    (folder / "task.toml").write_text(f'{settings}workdir = "{workdir}"\n')
    with pytest.raises(TaskFileError, match=complaint):
        await open_task(folder)


@pytest.mark.parametrize(
    ("links", "leading_out"),
    [
        ({"app/a": "/tests/expected.txt", "app/b": "../tests/x", "app/c": "/sandbox/tests"}, "abc"),
        ({"app/a": "/logs", "app/b": "/proc/self/root/tests", "app/c": "/", "app/d": "/sandbox", "app/e": "/dev/fd/3"}, "abcde"),
        ({"app/a": "b/x", "app/b": "/tests"}, "ab"),
        ({"app/a": "/usr/lib", "app/b": "a/../../tests"}, "b"),
        ({"app/a": "/usr/../tests", "app/b": "/var/run/../tests"}, "ab"),
        ({"app/a": "b", "app/b": "a", "app/c": "sub/../../app/x"}, "abc"),
        ({"app/a": "/app/x", "app/b": "sub/../x", "app/c": "/srv/data/x", "app/d": "/usr/bin/python3", "app/e": "/dev/null"}, ""),
        ({"app/a": "/sandbox/app/x", "app/sub/b": "../a", "app/c": "nowhere", "app/d": "/sandbox/srv/data", "app/e": "."}, ""),
        ({"srv/data/a": "/app", "srv/data/b": "../../tests/x", "srv/data/c": "../other"}, "bc"),
    ],
)  # fmt: skip
def test_links_of_the_agents_do_not_lead_to_the_tests(links: dict[str, str], leading_out: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    packed.seek(0)
    with tarfile.open(fileobj=packed) as archive:
        found = links_out(archive, ("/app", "/srv/data"))
    assert {name.rpartition("/")[2] for name in found} == set(leading_out)


def test_rewards_are_numbers_from_0_to_1() -> None:
    assert [reward_of(good) for good in ("0.25", 1, {"reward": 0.5, "speed": 9}, "1e-1")] == [0.25, 1.0, 0.5, 0.1]
    for bad in (
        "",
        "one",
        "nan",
        "inf",
        "-0.1",
        1.01,
        True,
        None,
        [1],
        {"reward": 10**400},
        {"score": 1},
        {"reward": "yes"},
        {"reward": None},
    ):
        with pytest.raises(ValueError, match=r"a reward is|could not convert"):
            reward_of(bad)


@pytest.mark.parametrize(
    ("line", "looks_there"),
    [
        ("python3 -W ignore -m pytest", True),
        ('"python3" -um pytest', True),
        ("python3 \\\n -m pytest", True),
        ("python3 -c 'import csv'", True),
        ("python3 - <<END", True),
        ("python3 <<END", True),
        ("cat check.py | /usr/bin/python3", True),
        ("export PYTHONPATH=/app", True),
        ("python3 /tests/check.py -m 3 -c", False),
        ("pytest /tests -m slow", False),
        ("apt-get install python3 -y", False),
    ],
)
def test_a_verifier_that_takes_modules_from_the_working_folder_is_known(
    tmp_path: Path, line: str, looks_there: bool
) -> None:
    folder = tmp_path / "task"
    shutil.copytree(GREETING, folder)
    (folder / "tests" / "test.sh").write_text(f"#!/bin/sh\n{line}\n")
    task = OpenTask(read_task_folder(folder), TaskImage("image", "/app", ("/app",), {}, b""))
    assert task.imports_from_workdir is looks_there
    for path in ("app/csv.py", "app/sitecustomize/__init__.py", "app/sitecustomize.pyc"):
        assert steers_tests(task, path) is looks_there


def test_every_summary_of_pytest_counts() -> None:
    def output(*lines: str) -> str:
        return "\n".join(["== short test summary info ==", *lines, "== 1 passed =="])

    assert pytest_reward(output("PASSED a::b")) == 1.0
    assert pytest_reward(output("PASSED a::b", "FAILED a::c")) == 0.0
    assert pytest_reward(output("PASSED a::b", "SKIPPED [1] a.py:3")) == 0.0
    assert pytest_reward(output("PASSED a::b") + "\n" + output("FAILED a::b")) == 0.0
    assert pytest_reward(output("FAILED a::b") + "\n" + output("PASSED a::b")) == 0.0
    assert pytest_reward(output("PASSED a::b") + "\r\n" + output("PASSED a::c")) == 1.0
    assert pytest_reward("PASSED a::b") == 0.0
