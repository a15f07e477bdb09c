"""Terminal tasks from their folder to their reward, on a real Docker engine: solved, left alone, cheated, vetted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.cli.main import main
from agentrl.cli.vet import vet
from agentrl.config import RunConfig
from agentrl.errors import SandboxError
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.outcome import Outcome
from agentrl.rollout.run_episode import EpisodeRunner, remote_runner
from agentrl.rollout.tasks import list_tasks
from agentrl.sandboxes import BackendName
from agentrl.sandboxes.grading.vet import FaultKind, TaskReport
from agentrl.testing import ScriptedModel, ToolCall
from agentrl.workflows import terminal_task
from agentrl.workflows.links_to_tests import links_out
from agentrl.workflows.task_steering import Steering, looks_in_workdir, places_of, steering
from agentrl.workflows.task_verifier import open_task, pytest_reward, reward_of
from agentrl.workflows.vet_terminal import vet_terminal_tasks
from tests.workflows.test_harness import SHELL

pytestmark = pytest.mark.anyio
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


def steered(
    env: dict[str, str], in_workdir: bool = False, keep: tuple[str, ...] = (), start: tuple[str, ...] = ()
) -> Steering:
    """What steers a verifier with these variables, in an image whose folders are where their names say."""
    places = places_of(env)
    real = [os.path.normpath(f"/app/{path}" if path[0] != "/" else path) for group in places.groups for path in group]
    inside = [f"/sandbox{path}" if f"{path}/".startswith("/app/") else path for path in real]
    return steering(
        places, inside, ["ls", "own"], ["of_a_plugin"], writable=["/app"], keep=keep, in_workdir=in_workdir, start=start
    )


def variant(tmp_path: Path, name: str, **files: str | None) -> Path:
    """A greeting with other files, by their names with __ for /, and of the same image."""
    folder = tmp_path / name
    shutil.copytree(GREETING, folder)
    for path, text in files.items():
        file = folder / path.replace("__", "/").replace("_sh", ".sh").replace("_toml", ".toml").replace("_md", ".md")
        file.unlink()
        if text is not None:
            file.write_text(text)
    return folder


@pytest.mark.soak
@pytest.mark.timeout(180)
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


@pytest.mark.soak
@pytest.mark.timeout(180)
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


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_a_cheat_earns_nothing(docker: BackendName) -> None:
    await check_cheats(await task(GREETING, agent=SHELL), CHEATS, honest=f"touch json.py; {SOLVE}")


async def check_cheats(given: dict[str, Any], cheats: dict[str, str], honest: str) -> None:
    """Check that each of these commands earns an agent 0, and the honest one 1."""
    says = ""
    async with runner(ScriptedModel(lambda request: says)) as opened:
        for cheat, command in cheats.items():
            says = command
            done = await opened.run(given, 0)
            assert (done.error, done.reward) == (None, 0.0), cheat
        says = honest
        assert (await opened.run(given, 0)).reward == 1.0


STEERED = """#!/bin/bash
. ~/.profile 2>/dev/null
true | ls /tests > /dev/null
python3 -m pytest -q -p no:cacheprovider /tests/test_outputs.py && echo 1 > /logs/verifier/reward.txt
python3 -c 'pass'
exit 0
"""
VARIABLES = """
[environment.env]
PATH = ".:bin:/srv/bin:/usr/local/bin:/usr/bin:/bin"
PYTHONPATH = "lib"
BASH_ENV = "start.sh"
LD_LIBRARY_PATH = "lib"
PYTHONSTARTUP = "start.py"
PYTEST_ADDOPTS = "-c settings.ini"
PYTEST_PLUGINS = "own_plugin"
HOME = "/app/home"
"""
REWARD = "echo 1 > /logs/verifier/reward.txt"
STEERS = {
    "a program first in PATH": f"printf '#!/bin/sh\\n{REWARD}' > ls; chmod +x ls",
    "a program in a folder of PATH": f"mkdir bin; printf '#!/bin/sh\\n{REWARD}' > bin/ls; chmod +x bin/ls",
    "a program behind a link of the image": f"mkdir -p tools; printf '#!/bin/sh\\n{REWARD}' > tools/ls; chmod +x tools/ls",
    "a link in the place of a folder of PATH": f"mkdir x; printf '#!/bin/sh\\n{REWARD}' > x/ls; chmod +x x/ls; ln -s x bin",
    "a start file of the shell": f"echo '{REWARD}' > start.sh; mkdir -p home; echo '{REWARD}' > home/.profile",
    "a module in PYTHONPATH": f"printf 'import os\\nos.system(\"{REWARD}\")\\nos._exit(0)' | tee lib/json.py lib/own_plugin.py",
    "a link in the place of PYTHONPATH": "mkdir x; printf 'import os\\nos._exit(0)' | tee x/json.py x/pytest.py; rm -r lib; ln -s x lib",
    "settings of pytest": "printf '[pytest]\\naddopts = --co' > settings.ini",
    "a library": "cp /dev/null lib/libc.so.6",
}


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_variables_of_the_task_lead_the_verifier_to_nothing_of_the_agents(
    docker: BackendName, tmp_path: Path
) -> None:
    folder = variant(tmp_path, "steered", tests__test_sh=STEERED)
    (folder / "task.toml").write_text((folder / "task.toml").read_text() + VARIABLES)
    image = "FROM agentrl/sandbox\nWORKDIR /app\nRUN echo world > name.txt && ln -s /app/tools /srv/bin\n"
    image += "RUN touch settings.ini start.sh start.py && mkdir home lib && touch lib/own_plugin.py\n"
    (folder / "environment" / "Dockerfile").write_text(image)
    honest = f"{STEERS['a library']}; {STEERS['a program first in PATH']}; {SOLVE}"
    await check_cheats(await task(folder, agent=SHELL), STEERS, honest=honest)


@pytest.mark.parametrize(
    ("path", "steers"),
    [
        ("app/own", True),
        ("app/bin/own", True),
        ("app/bin/other", False),
        ("app/bin/sub/ls", False),
        ("app/uvx", True),
        ("app/lib/libx.so.1", True),
        ("app/lib/deep/libx.so", True),
        ("app/lib/data.txt", False),
        ("app/lib/csv.py", True),
        ("app/lib/code.txt.py", True),
        ("app/lib/mine.py", False),
        ("app/lib/of_a_plugin/__init__.py", True),
        ("app/csv.py", False),
        ("app/start.sh", True),
        ("app/x/start.sh", False),
        ("app/home/.bashrc", True),
        ("app/home/.local/bin/env", True),
        ("app/home/.vimrc", False),
        ("app/cache/app/x.pyc", True),
        ("app/hook.js", True),
        ("app/lib/plugged.py", True),
        ("app/lib/kept.py", False),
    ],
)
def test_what_variables_name_steers(path: str, steers: bool) -> None:
    env = {
        "PATH": "/usr/bin::bin",
        "LD_LIBRARY_PATH": "/app/lib",
        "PYTHONPATH": "./lib:/usr/lib",
        "BASH_ENV": "start.sh",
        "HOME": "/app/home",
        "PYTHONPYCACHEPREFIX": "/app/cache",
        "NODE_OPTIONS": "--require=/app/hook.js --x",
        "PYTEST_ADDOPTS": "-p plugged -q",
        "PYTEST_PLUGINS": "kept",
    }
    assert steered(env, keep=("kept.py",))(path) is steers


def test_a_link_may_not_stand_for_a_place_that_variables_name() -> None:
    found = steered({"PATH": "/app/tools/bin:/bin", "HOME": "/app/home"})
    assert found.stands_for_a_place("app/tools")
    assert found.stands_for_a_place("app/tools/bin")
    assert found.stands_for_a_place("app/home")
    assert not found.stands_for_a_place("app/tools/bin/x")
    assert not found.stands_for_a_place("app/data")


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_a_working_folder_in_path_leaves_the_agent_its_work(docker: BackendName, tmp_path: Path) -> None:
    script = "#!/bin/sh\nset -e\ntest $(made) = 3 && test -s /app/made.txt && echo 1 > /logs/verifier/reward.txt\n"
    folder = variant(tmp_path, "in_path", tests__test_sh=script)
    (folder / "task.toml").write_text((folder / "task.toml").read_text() + 'env = { PATH = "/app:/usr/bin:/bin" }\n')
    work = "printf '#!/bin/sh\\necho 3\\n' > made; chmod +x made; echo made > made.txt"
    async with runner(ScriptedModel(lambda request: work)) as opened:
        done = await opened.run(await task(folder, agent=SHELL), 0)
    assert (done.error, done.reward) == (None, 1.0)


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_what_fails_and_is_not_the_agents_is_no_reward(docker: BackendName, tmp_path: Path) -> None:
    """A reward of 0 says that the agent failed."""
    scripts = {
        "cannot be started: its image has no /bin/nosuchshell, which": "#!/bin/nosuchshell\n",
        "cannot be started: its image has no zsh, which": "#!/usr/bin/env -S zsh -e\n",
        "left no text in reward.txt: OSError: not a regular file": "#!/bin/sh\nmkfifo /logs/verifier/reward.txt\n",
        "left no text in reward.json: OSError: 100000000 bytes": "#!/bin/sh\ntruncate -s 100000000 /logs/verifier/reward.json\n",
        "left no text in reward.txt: OSError: [Errno 40]": "#!/bin/sh\nln -s /app/hello.txt /logs/verifier/reward.txt\n",
        "left 'nan' in reward.txt": "#!/bin/sh\necho nan > /logs/verifier/reward.txt\n",
        "left '1e400' in reward.txt": "#!/bin/sh\necho 1e400 > /logs/verifier/reward.txt\n",
        "left '[1e400]' in reward.json": "#!/bin/sh\nprintf [1e400] > /logs/verifier/reward.json\n",
        "left '' in reward.txt": "#!/bin/sh\n: > /logs/verifier/reward.txt\n",
    }
    async with runner(ScriptedModel(lambda request: SOLVE)) as opened:
        for number, (complaint, script) in enumerate(scripts.items()):
            folder = variant(tmp_path, f"broken{number}", tests__test_sh=script)
            done = await opened.run(await task(folder, agent=SHELL), 0)
            assert complaint in (done.error or ""), (script, done)
        start = variant(tmp_path, "start", task_toml="[environment]\nstorage_mb = 2\n")
        (start / "environment" / "Dockerfile").write_text(
            "FROM agentrl/sandbox\nWORKDIR /app\nRUN head -c 3000000 /dev/zero > zeros\n"
        )
        done = await opened.run(await task(start, agent=SHELL), 0)
        assert "its files in /app take 3 MB, and environment.storage_mb and memory_mb leave a sandbox 2" in (
            done.error or ""
        )


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_the_agents_files_and_the_tests_have_room_together(docker: BackendName, tmp_path: Path) -> None:
    settings = (GREETING / "task.toml").read_text().replace("storage_mb = 256", "storage_mb = 24")
    folder = variant(tmp_path, "full", task_toml=settings)
    (folder / "tests" / "data").write_bytes(b"x" * 20_000_000)
    async with runner(ScriptedModel(lambda request: f"{SOLVE}; cat /dev/zero > zeros")) as opened:
        done = await opened.run(await task(folder, agent=SHELL), 0)
    assert (done.error, done.reward, done.metrics["files_lost"]) == (None, 1.0, 0.0)


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_what_a_verifier_prints_and_how_long_it_takes_has_bounds(docker: BackendName, tmp_path: Path) -> None:
    settings = (GREETING / "task.toml").read_text().replace("timeout_sec = 30.0", "timeout_sec = 1.0")
    async with runner(ScriptedModel(lambda request: SOLVE)) as opened:
        loud = variant(tmp_path, "loud", tests__test_sh="#!/bin/sh\nhead -c 1000000000 /dev/zero\n")
        done = await opened.run(await task(loud, agent=SHELL), 0)
        assert (done.error, done.reward, done.metrics["no_reward"]) == (None, 0.0, 1.0)
        hangs = variant(
            tmp_path, "hangs", tests__test_sh="#!/bin/sh\ntrap '' TERM\nsleep 1000 & sleep 1000\n", task_toml=settings
        )
        done = await opened.run(await task(hangs, agent=SHELL), 0)
        assert (done.error, done.reward, done.metrics["verifier_timed_out"]) == (None, 0.0, 1.0)


@pytest.mark.soak
@pytest.mark.timeout(180)
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


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_sandboxes_without_images_are_refused(bubblewrap: BackendName, docker: BackendName) -> None:
    async with runner(ScriptedModel("Done."), bubblewrap) as opened:
        done = await opened.run(await task(GREETING), 0)
    assert "is an image of Docker; it needs backend = 'docker'" in (done.error or "")


@pytest.mark.soak
@pytest.mark.timeout(180)
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


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_vetting_gives_the_network_and_asks_for_the_content_that_the_task_says(
    docker: BackendName, tmp_path: Path
) -> None:
    looks = "#!/bin/sh\n# pip install x\ngrep -q eth0 /proc/net/dev && test -s /app/hello.txt && echo 1 > /logs/verifier/reward.txt\n"
    folder = variant(tmp_path, "online", tests__test_sh=looks)
    (folder / "task.toml").write_text((folder / "task.toml").read_text() + "allow_internet = true\n")
    given = await task(folder)
    online, offline, changed = await vet_terminal_tasks(
        [{**given, "network": True}, given, {**given, "digest": "another"}], runs=1
    )
    assert (online.kept, online.warnings) == (True, ())
    assert "its verifier installs or fetches something, and there is no network" in offline.faults[0].detail
    assert "allow_internet = true gives no network" in offline.warnings[0]
    assert [fault.kind for fault in changed.faults] == [FaultKind.UNREADABLE]


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_vetting_reads_tasks_as_a_run_does(
    docker: BackendName, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    variant(tmp_path, "unusable", instruction_md="")
    good = variant(tmp_path, "good")
    keys, report, kept = tmp_path / "keys.toml", tmp_path / "report.json", tmp_path / "kept.jsonl"
    keys.write_text(
        f'tasks = "harbor:{tmp_path}"\n[data]\nfields = {{ max_turns = 3 }}\ncolumns = {{ name = "agent" }}\n'
    )
    assert main(["vet", "--config", str(keys), "--runs", "1", "--report", str(report), "--output", str(kept)]) == 1
    (refused,) = json.loads(report.read_text())["refused_tasks"]
    assert refused["faults"][0]["kind"] == "unreadable"
    assert "the instruction is empty" in refused["faults"][0]["detail"]
    (written,) = map(json.loads, kept.read_text().splitlines())
    assert (written["folder"], written["max_turns"], written["name"]) == (str(good), 3, "shell")
    assert main(["vet"]) == 2
    assert "no tasks are named" in capsys.readouterr().err


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_the_command_vets_a_folder_of_tasks(
    docker: BackendName, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert vet(f"harbor:{FOLDERS}", runs=1, as_json=True, report=tmp_path / "report.json") == 0
    assert '"kept": 2' in capsys.readouterr().out


@pytest.mark.soak
@pytest.mark.timeout(180)
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
    assert report.warnings == ()


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_an_image_of_the_older_form_holds_neither_tests_nor_solution(docker: BackendName, tmp_path: Path) -> None:
    folder = tmp_path / "older"
    (folder / "tests" / "deep").mkdir(parents=True)
    for name in (
        "tests/deep/expected.txt",
        "tests/test_it.py",
        "solution.sh",
        "run-tests.sh",
        "seen.txt",
        "ignored.txt",
    ):
        (folder / name).write_text("#!/bin/sh\n")
    (folder / "task.yaml").write_text("instruction: Look.\n")
    (folder / ".dockerignore").write_text("ignored.txt\n!tests/**\n!solution.sh\n")
    (folder / "Dockerfile").write_text("FROM agentrl/sandbox\nWORKDIR /app\nCOPY . /app\nADD * /srv/\n")
    model = ScriptedModel(ToolCall("shell", {"command": "ls -A /app /srv; find / -name expected.txt 2>&-"}), "Done.")
    async with runner(model) as opened:
        assert (await opened.run(await task(folder), 0)).error is None
    (shown,) = [one["content"] for one in model.requests[-1]["messages"] if one["role"] == "tool"]
    assert sorted(set(shown.split()) - {"[exit", "code", "0]", "1]"}) == [
        ".dockerignore",
        "/app:",
        "/srv:",
        "Dockerfile",
        "seen.txt",
        "task.yaml",
    ]
    (report,) = await vet_terminal_tasks([await task(folder)], runs=1)
    assert "its Dockerfile copies its whole folder (COPY . /app), of which tests, run-tests.sh" in report.warnings[0]


@pytest.mark.soak
@pytest.mark.timeout(180)
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


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_a_folder_of_the_images_own_that_nobody_can_write_to_is_named(
    docker: BackendName, tmp_path: Path
) -> None:
    folder = variant(
        tmp_path, "elsewhere", environment__Dockerfile="FROM agentrl/sandbox\nENV W=/tmp/work\nWORKDIR $W\n"
    )
    with pytest.raises(
        SandboxError, match="elsewhere: /tmp/work cannot be the agent's to write to: a sandbox has its own"
    ):
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
    found = links_out(links, ("/app", "/srv/data"))
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
        ("python3 -mpytest /tests", True),
        ('PY=/usr/bin/python3\n"$PY" -m pytest /tests', True),
        ("${PY} -Wignore -c 'import csv'", True),
        ("uv run -m pytest", True),
        ("coverage run -m pytest", True),
        ("pypy3 -m pytest", True),
        ('"python3" "-m" "pytest"', True),
        ("cat check.py | python3 2>&1", True),
        ("(cat check.py | python3) || exit 1", True),
        ("python3 /tests/check.py -m 3 -c", False),
        ("uv run pytest /tests -m slow", False),
        ("diff $EXPECTED <(sort /app/out)", False),
        ("git commit -m done", False),
        ("pytest /tests -m slow", False),
        ("apt-get install python3 -y", False),
    ],
)
def test_a_verifier_that_takes_modules_from_the_working_folder_is_known(line: str, looks_there: bool) -> None:
    assert looks_in_workdir(f"#!/bin/sh\n{line}\n", {}) is looks_there
    steers = steered({}, in_workdir=looks_there)
    for path in ("app/csv.py", "app/sitecustomize/__init__.py", "app/sitecustomize.pyc"):
        assert steers(path) is looks_there


@pytest.mark.parametrize(
    "path",
    [
        *("app/statistics.json", "app/calendar.ics", "app/secrets.txt", "app/queue", "app/site/index.html"),
        *("app/code/main.c", "app/code/main.py", "app/email/sent/__init__.py", "app/json.d/__init__.py"),
    ],
)
def test_a_file_that_no_program_imports_is_the_agents(path: str) -> None:
    assert not steered({"PYTHONPATH": "."}, in_workdir=True)(path)


def test_a_package_of_the_start_steers_whole() -> None:
    """A folder stands behind Python's own module of its name, unless it is a package."""
    without, with_it = (
        steered({}, in_workdir=True, start=start) for start in ((), ("app/email", "app/email/__init__.py"))
    )
    assert [without("app/email/mine.py"), with_it("app/email/mine.py")] == [False, True]
    assert [found("app/email/__init__.py") for found in (without, with_it)] == [True, True]
    assert [found.stands_for_a_place("app/email") for found in (without, with_it)] == [True, True]
    assert [found.stands_for_a_place("app/email/mine") for found in (without, with_it)] == [False, True]


def test_a_virtual_environment_of_the_start_steers_and_one_of_the_agents_does_not() -> None:
    site = "app/.venv/lib/python3.12/site-packages"
    found = steered({}, start=("app/.venv/pyvenv.cfg", "app/.venv/bin/python3.12", site, f"{site}/_pytest/__init__.py"))
    for path in (
        *(
            "pytest.py",
            "_pytest/main.py",
            "pytest/__init__.py",
            "new.pth",
            "../json/__init__.py",
            "../../../pyvenv.cfg",
        ),
        *("../../../bin/python3.12", "../../../bin/pytest"),
    ):
        steering_file = os.path.normpath(f"{site}/{path}")
        assert found(steering_file), path
        assert not found(steering_file.replace(".venv", "env")), path
    for path in ("numpy/__init__.py", "numpy/core.so", "data/model.pth", "../../../bin/tool"):
        assert not found(os.path.normpath(f"{site}/{path}")), path
    assert found.stands_for_a_place("app/.venv/lib")


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_files_in_a_virtual_environment_of_the_image_earn_nothing(docker: BackendName, tmp_path: Path) -> None:
    script = "#!/bin/sh\npython3 /tests/check.py && echo 1 > /logs/verifier/reward.txt\n"
    folder = variant(
        tmp_path,
        "venv",
        tests__test_sh=script,
        environment__Dockerfile="FROM agentrl/sandbox\nWORKDIR /app\nRUN python3 -m venv --system-site-packages --without-pip .venv\n"
        'ENV PATH="/app/.venv/bin:$PATH"\n',
    )
    check = "import sys\nassert sys.prefix == '/app/.venv', sys.prefix\nimport csv, _pytest, made\nassert made.answer == 3\n"
    (folder / "tests" / "check.py").write_text(check)
    cheat = "printf 'import os; os._exit(0)\\n' | tee x.pth csv.py _pytest.py ../csv.py ../../../bin/python3"
    honest = "echo 'answer = 3' > made.py; cp made.py statistics.txt"
    says = ""
    async with runner(ScriptedModel(lambda request: f"cd /app/.venv/lib/python3*/site-packages && {says}")) as opened:
        given = await task(folder, agent=SHELL)
        for says, reward in ((cheat, 0.0), (f"{cheat}; {honest}", 1.0)):
            done = await opened.run(given, 0)
            assert (done.error, done.reward) == (None, reward), says


async def test_a_task_that_is_none_is_named_in_its_report() -> None:
    (report,) = await vet_terminal_tasks([{"folder": ".", "prompt": "x", "agent": "nobody"}])
    (fault,) = report.faults
    assert fault.kind is FaultKind.UNREADABLE
    assert fault.detail.startswith("agent: there is no harness 'nobody'. Use shell")
    assert "pydantic" not in fault.detail


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
