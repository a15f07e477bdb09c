"""Repositories that an agent works on in a container and hidden tests grade: where they come from, what counts, whose fault is what."""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, SandboxError, TaskFileError
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.run_episode import EpisodeRunner, remote_runner
from agentrl.sandboxes.container import ContainerSpec, open_container
from agentrl.sandboxes.run_with_model import run_with_model
from agentrl.store.outcome import Outcome
from agentrl.tasks.task_type import as_task, task_type_of
from agentrl.testing import Refusal, ScriptedModel
from agentrl.workflows import harness
from agentrl.workflows.repository import Repository, outcomes_of, paths_of
from tests.sandboxes.test_container import left

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]
WRONG = "def add(a, b):\n    return a - b\n"
RIGHT = "def add(a, b):\n    return a + b\n"
HIDDEN = "from calc import add\n\ndef test_small():\n    assert add(2, 3) == 5\n\ndef test_zero():\n    assert add(2, 0) == 2\n"
ASK = """
import json, os, sys, urllib.request
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": sys.stdin.read()}]}
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers)
print(json.loads(urllib.request.urlopen(request).read())["choices"][0]["message"]["content"])
"""
SHELL = {
    "program": "python3",
    "command": 'python3 -c "$ASK" > /tmp/said && sh /tmp/said',
    "environment": {"ASK": ASK, "http_proxy": "http://127.0.0.1:9"},
}
"""A small agent: what the model says is run by sh. It has a proxy in its environment, as from its image, that must not be asked."""


def task(**changes: Any) -> dict[str, Any]:
    given = {"harness": SHELL, "repository": {"files": {"calc.py": WRONG}}, "prompt": "Mend add()."}
    return {
        **given,
        "tests": {"files": {"test_calc.py": HIDDEN}},
        "limits": {"timeout_s": 30, "memory_mb": 512},
        **changes,
    }


@asynccontextmanager
async def runner(says: Callable[[str], Any]) -> AsyncIterator[EpisodeRunner]:
    config = RunConfig.model_validate({"rollout": {"max_concurrent": 1}})
    async with (
        ScriptedModel(lambda request: says(request["messages"][-1]["content"])).serve() as url,
        open_run_sandboxes(config) as sandboxes,
        remote_runner(
            harness.run, base_url=url, api_key="-", model="scripted", timeout_s=120, sandboxes=sandboxes
        ) as opened,
    ):
        yield opened
    assert await in_thread(left) == []


async def outcome_of(says: str, given: dict[str, Any]) -> Outcome:
    async with runner(lambda _: says) as opened:
        return await opened.run(given, 0)


MEND = "sed -i 's/a - b/a + b/' calc.py"


async def test_a_row_of_your_own_mends_a_repository() -> None:
    done = await outcome_of(f"{MEND}; exit 3", task())
    assert (done.error, done.reward) == (None, 1.0)
    assert "2 passed" in json.loads(done.details or "")["output"]
    assert done.metrics == {
        "tests_passed": 1.0,
        "timed_out": 0.0,
        "calls_used_up": 0.0,
        "exit_code": 3.0,
        "files_lost": 0.0,
    }


PATCHED = "--- /dev/null\n+++ b/tests/test_more.py\n@@ -0,0 +1,3 @@\n+from calc import add\n+def test_more():\n+    assert add(1, 1) == 2\n"
UNITTEST = "import unittest, calc\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(calc.add(2, 3), 5)\n    def test_b(self): self.assertEqual(calc.add(2, 0), 2)\n"


@pytest.mark.parametrize(
    ("does", "changes", "reward"),
    [
        pytest.param("true", {}, 0.0, marks=pytest.mark.soak),
        ("true", {"partial": True, "tests": {"files": {"test_calc.py": HIDDEN}, "must_pass": ["test_calc.py::test_small", "test_calc.py::test_zero"]}}, 0.5),
        (MEND, {"tests": {"patch": PATCHED, "must_pass": ["tests/test_more.py::test_more"]}}, 1.0),
        pytest.param("true", {"tests": {"patch": PATCHED}}, 0.0, marks=pytest.mark.soak),
        pytest.param(MEND, {"tests": {"files": {"check.sh": "python3 -c 'import calc; assert calc.add(1, 1) == 2'"}, "command": ["sh", "check.sh"]}}, 1.0, marks=pytest.mark.soak),
        (MEND, {"tests": {"files": {"t.py": UNITTEST}, "command": ["python3", "-m", "unittest", "-v", "t"], "must_pass": ["test_a (t.T.test_a)", "test_b (t.T.test_b)"]}}, 1.0),
        pytest.param(MEND, {"tests": {"files": {"test_calc.py": HIDDEN}, "must_pass": ["test_calc.py::test_small", "test_calc.py::test_smal"]}}, 0.0, marks=pytest.mark.soak),
        pytest.param("printf 'def test_small(): pass' > test_calc.py", {}, 0.0, marks=pytest.mark.soak),
        pytest.param("rm -rf /workspace/*", {}, 0.0, marks=pytest.mark.soak),
        pytest.param("rm -rf /bin /usr /lib", {}, 0.0, marks=pytest.mark.soak),
    ],
)  # fmt: skip
async def test_the_state_of_the_repository_decides(does: str, changes: dict[str, Any], reward: float) -> None:
    done = await outcome_of(does, task(**changes))
    assert (done.error, done.reward) == (None, reward)


@pytest.mark.soak
async def test_what_an_agent_did_before_its_time_was_over_counts() -> None:
    done = await outcome_of(f"{MEND}; sleep 60", task(limits={"timeout_s": 5, "memory_mb": 512}))
    assert (done.error, done.reward, done.metrics["timed_out"]) == (None, 1.0, 1.0)


@pytest.mark.soak
async def test_an_agent_that_asks_without_end_is_stopped() -> None:
    row = {**SHELL, "command": 'while true; do python3 -c "$ASK"; done'}
    done = await outcome_of("go on", task(harness=row, limits={"timeout_s": 60, "memory_mb": 512, "calls": 3}))
    assert (done.error, done.metrics["calls_used_up"], done.metrics["timed_out"]) == (None, 1.0, 0.0)


@pytest.mark.soak
async def test_what_is_written_into_the_pipe_of_the_relay_ends_no_episode() -> None:
    done = await outcome_of(f"{MEND}; for i in 1 2 3; do echo '{{}}' > /proc/$PPID/fd/1; done; true", task())
    assert (done.error, done.reward) == (None, 1.0)


async def test_an_agent_reaches_the_model_and_nothing_else() -> None:
    """No network, no key, and no other server by the path of a request."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        path = f"@127.0.0.1:{other.getsockname()[1]}/"
        asks = (
            "python3 - <<'END'\nimport http.client, os\nurl = os.environ['OPENAI_BASE_URL'].split('/')[2]\n"
            f"there = http.client.HTTPConnection(url)\nthere.putrequest('GET', '{path}')\nthere.endheaders()\nassert there.getresponse().status == 400\nEND\n"
            f'test $? = 0 && test "$(ls /sys/class/net)" = lo && env | grep -q KEY=outside && {MEND}'
        )
        done = await outcome_of(asks, task())
        assert (done.error, done.reward) == (None, 1.0)
        with pytest.raises(BlockingIOError):
            other.accept()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"harness": {"program": "sh", "command": "echo no key >&2; exit 3"}}, "ended with exit code 3 and never asked the model; .*no key"),
        pytest.param({"harness": {"program": "no-such", "command": "no-such"}}, "no-such: not found.*Where the program is missing, install it in the image", marks=pytest.mark.soak),
        pytest.param({"tests": {"files": {"a.sh": ""}, "command": ["no-such"]}}, "hidden tests cannot be run in .*no program 'no-such'", marks=pytest.mark.soak),
        ({"tests": {"patch": PATCHED.replace("/dev/null", "a/tests/test_more.py").replace("-0,0", "-7,3")}}, "a patch does not apply to /workspace"),
    ],
)  # fmt: skip
async def test_what_is_not_the_policys_fault_fails_the_episode(changes: dict[str, Any], told: str) -> None:
    done = await outcome_of("true", task(**changes))
    assert not done.finished
    assert re.search(told, done.error or "")


@pytest.mark.soak
async def test_an_agent_whose_every_request_is_refused_is_an_error_that_quotes_the_model() -> None:
    async with runner(lambda _: Refusal(400, "the prompt is too long")) as opened:
        done = await opened.run(task(), 0)
    assert "which refused what it asked (/v1/chat/completions: 400: " in (done.error or "")


@pytest.mark.soak
async def test_an_image_without_python_is_named() -> None:
    gone = "mv /usr/bin/python3 /usr/bin/python4; ln -sf /nowhere /usr/bin/python3"
    async with open_container(ContainerSpec()) as container:
        await container.run(["sh", "-c", gone])
        with pytest.raises(
            SandboxError, match="has no python3, by which an agent there reaches the model; install one in it"
        ):
            await run_with_model(container, ["true"], base_url="http://127.0.0.1:9", api_key="-")


@pytest.mark.parametrize(
    ("printed", "outcomes"),
    [
        (
            "PASSED t.py::test_a[a - b]\nFAILED t.py::test_b - assert 1 == 2\nXFAIL t.py::test_c - why\nXPASS t.py::d\nERROR t.py - no\nSKIPPED [1] t.py:3: no\n",
            {"t.py::test_a[a": True, "t.py::test_b": False, "t.py::test_c": True, "t.py::d": False, "t.py": False},
        ),
        ("test_a (t.T) ... ok\ntest_b (t.T) ... FAIL\ntest_c (t.T) ... expected failure\n", {"test_a (t.T)": True, "test_b (t.T)": False, "test_c (t.T)": True}),
        ("test_a ok\ntest_b F\nPASSED t.py::test_c\nERROR t.py::test_c\n", {"t.py::test_c": False, "test_a": True, "test_b": False}),
    ],
)  # fmt: skip
def test_outcomes_are_read_as_test_runners_print_them(printed: str, outcomes: dict[str, bool]) -> None:
    assert outcomes_of(printed) == outcomes


def test_a_repository_is_a_folder_or_a_commit_without_its_history(tmp_path: Path) -> None:
    for name, text in {
        "a/b.py": "x = 1\n",
        "docs/c.txt": "c\n",
        ".gitattributes": "docs export-ignore\n*.txt eol=crlf\n",
    }.items():
        (tmp_path / "it" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "it" / name).write_text(text)
    git = ("git", "-C", str(tmp_path / "it"), "-c", "user.name=t", "-c", "user.email=t@t")
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "the message")):
        subprocess.run([*git, *command], check=True)
    for given in ({"folder": tmp_path / "it"}, {"git": tmp_path / "it"}):
        with tarfile.open(fileobj=io.BytesIO(Repository.model_validate(given).packed())) as packed:
            names = {one.name.removeprefix("./") for one in packed if one.isreg()}
            assert names == {"a/b.py", "docs/c.txt", ".gitattributes"}
    with pytest.raises(ConfigError, match="commit = 'nowhere'"):
        Repository(git=tmp_path / "it", commit="nowhere").packed()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"harness": "claude"}, "there is no harness 'claude'; use shell, claude-code"),
        ({"repository": {"files": {}, "git": "."}}, "a repository has one of 'folder', 'files' and 'git'"),
        ({"repository": None}, "a task needs a 'repository', or an 'image' that has it"),
        ({"repository": {"files": {"../a": ""}}}, "a path must be relative"),
        ({"tests": {"patch": PATCHED.replace("tests/", "../")}}, "a path must be relative"),
        ({"tests": {"files": {"a.py": ""}}}, "name a 'command' that runs the tests"),
        ({"limits": {"calls": 0}}, "limits.calls': .*greater than 0"),
        ({"workdir": "here"}, "workdir': .*pattern"),
    ],
)
def test_a_task_that_makes_no_sense_says_so(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TaskFileError, match=complaint):
        as_task(task(**changes), "task 0", task_type_of(harness.run))


def test_a_patch_names_the_files_that_it_changes_makes_and_only_renames() -> None:
    patch = "rename from old.py\nrename to new.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x\n+y\n"
    assert paths_of(patch) == ["old.py", "new.py", "a.py"]
