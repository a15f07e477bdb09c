"""Repositories that an agent works on and hidden tests grade: where they come from, what counts, and what does not help a cheat."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, TaskFileError, error_line
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.outcome import Outcome
from agentrl.rollout.run_episode import EpisodeRunner, remote_runner
from agentrl.rollout.task_type import as_task, task_type_of
from agentrl.sandboxes import BackendName
from agentrl.testing import Refusal, ScriptedModel
from agentrl.workflows import harness, hidden_tests
from agentrl.workflows.hidden_tests import with_tests
from agentrl.workflows.repository import Repository
from tests.workflows.tar_texts import pack, texts

pytestmark = pytest.mark.anyio
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


def write(path: str, text: str) -> str:
    return f"mkdir -p $(dirname {path}); cat > {path} <<'END'\n{text}\nEND\n"


@asynccontextmanager
async def runner(says: Callable[[str], str], backend: BackendName) -> AsyncIterator[EpisodeRunner]:
    config = RunConfig.model_validate({"sandbox": {"backend": backend, "leases": 2}})
    async with (
        ScriptedModel(lambda request: says(request["messages"][-1]["content"])).serve() as url,
        open_run_sandboxes(config) as sandboxes,
        remote_runner(
            harness.run, base_url=url, api_key="-", model="scripted", timeout_s=120, sandboxes=sandboxes
        ) as opened,
    ):
        yield opened


async def outcome_of(says: str, given: dict[str, Any], backend: BackendName) -> Outcome:
    async with runner(lambda _: says, backend) as opened:
        return await opened.run(given, 0)


async def test_a_row_of_your_own_mends_a_repository(backend: BackendName) -> None:
    done = await outcome_of("sed -i 's/a - b/a + b/' calc.py; echo Mended.", task(), backend)
    assert (done.error, done.reward) == (None, 1.0)
    assert done.metrics == {
        "tests_passed": 1.0,
        "answered": 1.0,
        "timed_out": 0.0,
        "calls_used_up": 0.0,
        "exit_code": 0.0,
        "repository_lost": 0.0,
    }


async def test_the_repository_decides_and_not_how_the_agent_ends(bubblewrap: BackendName) -> None:
    async with runner(lambda prompt: prompt, bubblewrap) as opened:
        done = await opened.run(task(prompt=write("calc.py", RIGHT) + "exit 3"), 0)
        assert (done.error, done.reward, done.metrics["exit_code"]) == (None, 1.0, 3.0)
        done = await opened.run(task(prompt="true", partial=True), 0)
        assert (done.error, done.reward) == (None, 0.5)
        assert (await opened.run(task(prompt="true"), 0)).reward == 0.0


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_what_an_agent_did_before_its_time_was_over_counts(bubblewrap: BackendName) -> None:
    async with runner(lambda prompt: prompt, bubblewrap) as opened:
        limits = {"timeout_s": 6, "memory_mb": 512}
        done = await opened.run(task(prompt=write("calc.py", RIGHT) + "sleep 60", limits=limits), 0)
        assert (done.error, done.reward, done.metrics["timed_out"]) == (None, 1.0, 1.0)


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_an_answer_is_read_from_the_file_that_the_row_names(bubblewrap: BackendName) -> None:
    for text, answered in (("Mended.", 1.0), ("", 0.0)):
        row = {**SHELL, "answer": "answer.txt"}
        says = f"printf '%s' '{text}' > $HOME/answer.txt; pwd; ls $HOME"
        done = await outcome_of(says, task(harness=row), bubblewrap)
        assert (done.error, done.metrics["answered"]) == (None, answered)


@pytest.mark.parametrize("solution", [True, pytest.param(False, marks=pytest.mark.soak)])
async def test_a_test_that_has_to_pass_and_is_nowhere_is_an_error_of_the_task_and_no_reward(
    bubblewrap: BackendName, solution: bool
) -> None:
    patch = "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
    asked = task(
        tests={"files": {"test_calc.py": HIDDEN}, "must_pass": ["test_calc.py::test_small", "test_calc.py::test_smal"]},
        name="calc-7",
        **({"solution": patch} if solution else {}),
    )
    async with runner(lambda _: write("calc.py", RIGHT), bubblewrap) as run:
        done = await run.run(asked, 0)
    assert done.status == "failed"
    told = error_line(done.error or "")
    assert "the task 'calc-7': tests.must_pass names 'test_calc.py::test_smal', and pytest finds no such test" in told
    assert ("with its solution" in told) == solution


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_a_test_that_vanishes_by_what_an_agent_does_is_not_passed_and_no_error(bubblewrap: BackendName) -> None:
    """Its file cannot be read, or it is there with the code that the task asks for alone."""
    tests = "import calc\n\nif hasattr(calc, 'double'):\n    def test_double(): assert calc.double(2) == 4\n"
    patch = "--- a/calc.py\n+++ b/calc.py\n@@ -2 +2,4 @@\n     return a - b\n+\n+def double(a):\n+    return 2 * a\n"
    asked = task(tests={"files": {"test_calc.py": tests}, "must_pass": ["test_calc.py::test_double"]}, solution=patch)
    right = "def double(a):\n    return a + a\n"
    for left, reward in ((right, 1.0), (WRONG, 0.0), ("raise ImportError", 0.0), ("import os; os._exit(0)", 0.0)):
        async with runner(lambda _, left=left: write("calc.py", left), bubblewrap) as run:  # type: ignore[misc]
            done = await run.run(asked, 0)
        assert (done.error, done.reward) == (None, reward), left


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_a_command_grades_in_place_of_pytest(bubblewrap: BackendName) -> None:
    tests = {"files": {"check.sh": 'test "$(cat said.txt)" = hello\n'}, "command": ["sh", "check.sh"]}
    assert (await outcome_of("printf hello > said.txt", task(tests=tests), bubblewrap)).reward == 1.0
    assert (await outcome_of("printf bye > said.txt", task(tests=tests), bubblewrap)).reward == 0.0


REPORT = "import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport(item, call):\n    report = yield\n    report.outcome = 'passed'\n    return report\n"
CHEATS = {
    "its own hidden tests": write("test_calc.py", "def test_small():\n    pass\n"),
    "a conftest that makes all pass": write("conftest.py", REPORT),
    "settings of pytest": write("pytest.ini", "[pytest]\naddopts = -p cheat\n") + write("cheat.py", REPORT),
    "a plugin that is installed": write("cheat.py", REPORT)
    + write("cheat-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: cheat\nVersion: 1\n")
    + write("cheat-1.dist-info/entry_points.txt", "[pytest11]\ncheat = cheat\n"),
    "an end with exit code 0": write("calc.py", "import os\nos._exit(0)"),
    "a SystemExit": write("calc.py", "raise SystemExit(0)"),
    "skipped tests": write("calc.py", "import pytest\npytest.skip('later', allow_module_level=True)"),
    "tests that are expected to fail": write("calc.py", "import pytest\ndef add(a, b):\n    pytest.xfail('later')"),
    "modules of the tests' names": write("pytest.py", "raise SystemExit(0)") + write("json.py", "x = 1"),
    "a folder in the way": "mkdir -p test_calc.py/inside",
    "a link in the way": "ln -s /dev/null test_calc.py",
    "a process that goes on": "(setsid sh -c 'sleep 5; echo \"def add(a, b): return a + b\" > /sandbox/calc.py' &) ; true",
    "a report of its own": write("calc.py", 'print(\'{"passed": 9, "total": 9}\', flush=True)\nimport os\nos._exit(0)'),
    "files that cannot be read": "mkfifo pipe; chmod 000 calc.py pipe",
}


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_cheat_earns_nothing(bubblewrap: BackendName) -> None:
    async with runner(lambda prompt: CHEATS[prompt], bubblewrap) as opened:
        for cheat in CHEATS:
            done = await opened.run(task(prompt=cheat), 0)
            assert (done.error, done.reward) == (None, 0.0), cheat
            assert done.metrics["tests_passed"] < 1.0, cheat


TO_THE_HOST = """
import os
seen = os.readlink("/proc/self/fd/1")
pid = os.getppid()
for _ in range(3):  # the shells that started this, then the relay
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    if os.readlink(f"/proc/{pid}/fd/1") != seen:
        break
os.write(os.open(f"/proc/{pid}/fd/1", os.O_WRONLY), LINE + b"\\n")
"""


def to_the_host(line: bytes) -> str:
    """Write a line into the pipe that the relay writes to the host."""
    return (
        write("/tmp/say.py", f"LINE = {line!r}\n{TO_THE_HOST}")
        + "python3 /tmp/say.py && echo written > said.txt; sleep 1"
    )


HARMS = {
    "deletes the repository": "rm -rf /sandbox/* /sandbox/.* /sandbox; true",
    "takes the rights of its folder": "chmod 000 /sandbox",
    "fills its disk": "head -c 1000000000 /dev/zero > big; head -c 1000000000 /dev/zero > /tmp/big; true",
    "makes folders in folders": "python3 -c \"import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\"; true",
    "leaves a pipe for an answer": "mkfifo $HOME/answer.txt",
    "kills what it can": "kill -9 -1",
    "leaves processes": "for i in 1 2 3 4 5 6 7 8; do (setsid sh -c 'while :; do :; done' &); done",
}
LINES = {
    "brackets": b"[" * 100_000,
    "an exit code of 400 digits": b'{"kind":"exit","code":' + b"9" * 400 + b',"stdout":"","stderr":""}',
    "an exit code without end": b'{"kind":"exit","code":Infinity,"stdout":"","stderr":""}',
}


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_an_agent_that_does_harm_earns_nothing_and_the_next_is_not_harmed(bubblewrap: BackendName) -> None:
    row = {**SHELL, "answer": "answer.txt"}
    async with runner(lambda prompt: HARMS.get(prompt, prompt), bubblewrap) as opened:
        for harm in HARMS:
            done = await opened.run(task(prompt=harm, harness=row), 0)
            assert (done.error, done.reward, done.metrics["answered"]) == (None, 0.0, 0.0), harm
        assert (await opened.run(task(prompt=write("calc.py", RIGHT)), 0)).reward == 1.0


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_what_is_written_into_the_pipe_of_the_relay_ends_no_episode(bubblewrap: BackendName) -> None:
    tests = {"files": {"check.sh": 'test "$(cat said.txt)" = written\n'}, "command": ["sh", "check.sh"]}
    async with runner(lambda prompt: to_the_host(LINES[prompt]), bubblewrap) as opened:
        for line in LINES:
            done = await opened.run(task(prompt=line, tests=tests), 0)
            assert (done.error, done.reward, done.metrics["exit_code"]) == (None, 1.0, 0.0), line


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_a_path_of_a_request_names_no_other_server(bubblewrap: BackendName) -> None:
    """The key of the session goes with every request."""
    ask = (
        "import http.client, os, sys, urllib.parse\n"
        "c = http.client.HTTPConnection(urllib.parse.urlparse(os.environ['OPENAI_BASE_URL']).netloc)\n"
        "c.request('GET', sys.argv[1])\nprint(c.getresponse().status)"
    )
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        path = f"@127.0.0.1:{elsewhere.getsockname()[1]}/v1/models"
        says = write("/tmp/ask.py", ask) + f"timeout 2 python3 /tmp/ask.py {path} > said.txt; true"
        done = await outcome_of(says, task(), bubblewrap)
        elsewhere.setblocking(False)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    assert done.error is None


async def test_an_agent_that_asks_without_end_is_stopped(bubblewrap: BackendName) -> None:
    row = {**SHELL, "command": 'while :; do python3 -c "$ASK" > /tmp/said; done'}
    limits = {"timeout_s": 30, "memory_mb": 512, "calls": 3}
    async with runner(lambda _: "", bubblewrap) as opened:
        done = await opened.run(task(harness=row, limits=limits), 0)
    assert (done.error, done.reward, done.metrics["calls_used_up"], done.metrics["timed_out"]) == (None, 0.0, 1.0, 0.0)


async def test_an_agent_that_never_asks_is_an_error_with_its_last_words(bubblewrap: BackendName) -> None:
    row = {"program": "sh", "command": "echo 'no settings found' >&2; exit 41"}
    done = await outcome_of("", task(harness=row), bubblewrap)
    assert (
        "the agent 'sh' ended with exit code 41 and never asked the model; at its end it said: 'no settings found'"
        in (done.error or "")
    )


@pytest.mark.parametrize(
    ("path", "refusal"),
    [
        pytest.param("/messages", r"/v1/messages: 404", marks=pytest.mark.soak),
        ("/chat/completions", r"/v1/chat/completions: 400: .*context"),
    ],
)
async def test_an_agent_whose_every_request_is_refused_is_an_error_that_quotes_the_model(
    path: str, refusal: str, bubblewrap: BackendName
) -> None:
    """Which no reply of the policy caused: an API that the server does not speak, a prompt that its context does not hold."""
    ask = ASK.replace("/chat/completions", path)
    look = "import os, urllib.request as u; u.urlopen(os.environ['OPENAI_BASE_URL'] + '/models')"
    row = {**SHELL, "command": 'python3 -c "$LOOK"; python3 -c "$ASK"; true', "environment": {"ASK": ask, "LOOK": look}}
    config = RunConfig.model_validate({"sandbox": {"backend": bubblewrap}})
    async with (
        ScriptedModel(lambda _: Refusal(400, "the context is too short")).serve() as url,
        open_run_sandboxes(config) as sandboxes,
        remote_runner(
            harness.run, base_url=url, api_key="-", model="scripted", timeout_s=120, sandboxes=sandboxes
        ) as opened,
    ):
        done = await opened.run(task(harness=row), 0)
    assert re.search(rf"the agent 'python3' got no reply from the model, .*\({refusal}", done.error or ""), done


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_too_much_in_the_repository_earns_nothing(bubblewrap: BackendName) -> None:
    says = write("calc.py", RIGHT) + "head -c 40000000 /dev/zero > zeros"
    done = await outcome_of(says, task(), bubblewrap)
    assert (done.error, done.reward, done.metrics["repository_lost"]) == (None, 0.0, 1.0)


async def test_tests_that_cannot_be_run_are_an_error_and_no_reward(
    bubblewrap: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = {"files": {"check.sh": ""}, "command": ["no-such-program", "check.sh"]}
    done = await outcome_of("true", task(tests=missing), bubblewrap)
    assert "it has no program 'no-such-program', which their command names; install it there" in (done.error or "")
    monkeypatch.setattr(hidden_tests, "CHECK_PYTEST", "import no_such_pytest")
    done = await outcome_of("true", task(), bubblewrap)
    assert "its python3 imports no pytest (ModuleNotFoundError: No module named 'no_such_pytest')" in (done.error or "")


async def test_a_plugin_of_pytest_is_the_images_and_not_the_repositorys(bubblewrap: BackendName) -> None:
    """A plugin that is installed, as anyio's is here, is imported where the repository's modules are looked for."""
    passes = "import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    passes += "    report = yield\n    report.outcome = 'passed'\n    return report\n"
    planted = write("anyio/__init__.py", "") + write("anyio/pytest_plugin.py", passes)
    done = await outcome_of(planted, task(), bubblewrap)
    assert (done.error, done.reward) == (None, 0.0)


async def test_what_steers_pytest_is_as_the_repository_had_it(bubblewrap: BackendName) -> None:
    """Its own conftest.py works, though the agent has emptied it."""
    conftest = "import pytest\n@pytest.fixture\ndef five():\n    return 5\n"
    given = task(
        repository={
            "files": {"src/calc.py": RIGHT, "conftest.py": conftest, "pytest.ini": "[pytest]\npythonpath = src\n"}
        },
        tests={
            "files": {
                "tests/test_calc.py": "from calc import add\n\ndef test_it(five):\n    assert add(2, 3) == five\n"
            }
        },
    )
    done = await outcome_of("rm pytest.ini; echo > conftest.py", given, bubblewrap)
    assert (done.error, done.reward) == (None, 1.0)


def test_what_a_steering_link_leads_to_is_as_the_repository_had_it() -> None:
    def repository(text: str) -> bytes:
        result = io.BytesIO(pack({"cfg/base.ini": text, "cfg/other.ini": text}))
        with tarfile.open(fileobj=result, mode="a") as packed:
            for name, target in (("pytest.ini", "cfg/link.ini"), ("cfg/link.ini", "../cfg/base.ini")):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, target
                packed.addfile(link)
        return result.getvalue()

    with tarfile.open(fileobj=io.BytesIO(with_tests(repository("old"), repository("new"), {}))) as packed:
        files = {one.name: packed.extractfile(one).read() for one in packed if one.isreg()}  # type: ignore[union-attr]
        assert packed.getmember("pytest.ini").linkname == "cfg/link.ini"
    assert files == {"cfg/base.ini": b"old", "cfg/other.ini": b"new"}


def test_what_nobody_steers_with_comes_through_as_it_is() -> None:
    left = io.BytesIO()
    with tarfile.open(fileobj=left, mode="w") as packed:
        for name, kind, target, mode in (
            ("locked", tarfile.DIRTYPE, "", 0o000),
            ("locked/" + 40 * "long-name/" + "é.txt", tarfile.REGTYPE, "", 0o640),
            ("link", tarfile.SYMTYPE, 20 * "far/away/", 0o777),
            ("again", tarfile.LNKTYPE, "locked/" + 40 * "long-name/" + "é.txt", 0o640),
            (os.fsdecode(b"no-\xff-utf8"), tarfile.REGTYPE, "", 0o755),
            ("empty", tarfile.REGTYPE, "", 0o600),
        ):
            one = tarfile.TarInfo(name)
            one.type, one.linkname, one.mode, one.mtime = kind, target, mode, 12345.5
            one.size = 0 if kind != tarfile.REGTYPE or name == "empty" else 700
            packed.addfile(one, io.BytesIO(b"x" * one.size))

    def content(archive: bytes) -> list[Any]:
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            files = {one.name: packed.extractfile(one) for one in packed if one.isreg()}
            texts = {name: file.read() for name, file in files.items() if file is not None}
            return [
                (
                    one.name,
                    one.type,
                    one.linkname,
                    one.mode | (0o700 if one.isdir() else 0),
                    one.mtime,
                    texts.get(one.name),
                )
                for one in packed
            ]

    assert content(with_tests(pack({}), left.getvalue(), {})) == content(left.getvalue())


def test_another_name_of_what_does_not_count_does() -> None:
    """The first of two names of a file holds its content in an archive."""
    left = io.BytesIO()
    with tarfile.open(fileobj=left, mode="w") as packed:
        for name, kind in (
            ("conftest.py", tarfile.REGTYPE),
            ("mine.py", tarfile.LNKTYPE),
            ("also.py", tarfile.LNKTYPE),
        ):
            one = tarfile.TarInfo(name)
            one.type, one.linkname = kind, "" if kind == tarfile.REGTYPE else "conftest.py"
            one.size = 600 if kind == tarfile.REGTYPE else 0
            packed.addfile(one, io.BytesIO(b"x" * one.size))
    seen = texts(with_tests(pack({"conftest.py": "start"}), left.getvalue(), {}))
    assert seen == {"conftest.py": "start", "mine.py": "x" * 600, "also.py": "x" * 600}


def test_hidden_tests_take_the_place_of_what_is_in_their_way() -> None:
    start = pack({"calc.py": "old", "conftest.py": "old", "sub/setup.cfg": "old"})
    end = pack({"calc.py": "new", "conftest.py": "new", "tests": "a file", "other/conftest.py": "new", "kept/x": "new"})
    seen = texts(with_tests(start, end, {"tests/test_a.py": "hidden"}))
    assert seen == {
        "calc.py": "new",
        "kept/x": "new",
        "conftest.py": "old",
        "sub/setup.cfg": "old",
        "tests/test_a.py": "hidden",
    }


def test_a_repository_is_a_folder_or_a_commit_without_its_history(tmp_path: Path) -> None:
    (tmp_path / "calc.py").write_text("first")

    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
        subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True, timeout=60)

    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    (tmp_path / "calc.py").write_text("second")
    git("commit", "-am", "two")
    (tmp_path / "calc.py").write_text("third")
    assert texts(Repository.model_validate(str(tmp_path)).packed()) == {"calc.py": "third"}
    assert texts(Repository(git=tmp_path).packed()) == {"calc.py": "second"}
    assert texts(Repository(git=tmp_path, commit="HEAD~1").packed()) == {"calc.py": "first"}
    with pytest.raises(ConfigError, match="commit = 'nowhere'"):
        Repository(git=tmp_path, commit="nowhere").packed()
    with pytest.raises(ConfigError, match=r"there is no such folder in .*; name one, or use 'files'"):
        Repository(folder=tmp_path / "none").packed()
    (tmp_path / "large").write_bytes(b"x" * 34_000_000)
    with pytest.raises(ConfigError, match="at most 33554432 go into a sandbox"):
        Repository(folder=tmp_path).packed()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"harness": "claude-cod"},
            "there is no harness 'claude-cod'; did you mean 'claude-code'? Use shell, claude-code, codex",
        ),
        ({"harness": "zzz"}, "there is no harness 'zzz'. Use shell, claude-code"),
        ({"harness": {"program": "x"}}, "the field 'harness.command' is missing"),
        ({"repository": {}}, "a repository has one of 'folder', 'files' and 'git'; this has none"),
        ({"repository": {"git": ".", "files": {"a": ""}}}, "this has ['files', 'git']"),
        ({"repository": {"git": ".", "commit": "--output=/etc/passwd"}}, "repository.commit"),
        ({"repository": {"files": {"../a": ""}}}, "a path must be relative, below the repository"),
        (
            {"tests": {"files": {"a.py": ""}}},
            "none of the files ['a.py'] is called test_*.py or *_test.py; name a 'command'",
        ),
        ({"tests": {"files": {}}}, "tests.files"),
        ({"test": 1}, "no field 'test'; did you mean 'tests'?"),
        ({"limits": {"timeout_s": 0}}, "limits.timeout_s"),
        ({"prompt": ""}, "the field 'prompt'"),
    ],
)
def test_a_task_that_makes_no_sense_says_so(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TaskFileError) as refused:
        as_task(task(**changes), "tasks.jsonl, line 1", task_type_of(harness.run))
    assert complaint in str(refused.value)


async def test_a_program_that_is_missing_is_named_with_what_to_install(
    bubblewrap: BackendName, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENTRL_AGENTS", str(tmp_path))
    done = await outcome_of("", task(harness="codex"), bubblewrap)
    assert "needs the program 'codex'" in (done.error or "")
    assert "scripts/install_agents.sh installs it" in (done.error or "")
    assert str(tmp_path) in (done.error or "")


def test_a_task_is_a_line_of_json() -> None:
    value = task_type_of(harness.run)
    assert value is not None
    assert value.value(json.loads(json.dumps(task()))).limits.memory_mb == 512
