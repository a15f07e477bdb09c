"""Rows in SWE-bench's form, from the row to the reward: two repositories made here, each with a fault, its mend and its tests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.cli.main import main
from agentrl.config import RunConfig
from agentrl.errors import TaskFileError
from agentrl.rollout import swe_rows
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.outcome import Outcome
from agentrl.rollout.run_episode import remote_runner
from agentrl.rollout.task_type import task_type_of
from agentrl.rollout.tasks import list_tasks
from agentrl.sandboxes import BackendName
from agentrl.testing import ScriptedModel
from agentrl.workflows import harness

pytestmark = pytest.mark.anyio
SLUGS = {
    "slugs/__init__.py": "",
    "slugs/make.py": "def slug(title):\n    return title.lower().replace(' ', '-')\n",
    "tests/test_slugs.py": "from slugs.make import slug\n\ndef test_lower():\n    assert slug('Ab') == 'ab'\n",
    "pyproject.toml": "[project]\nname = 'slugs'\nversion = '1'\n",
}
SLUGS_MENDED = "def slug(title):\n    return '-'.join(title.lower().split())\n"
SLUGS_TESTS = """import pytest
from slugs.make import slug

def test_lower():
    assert slug('Ab') == 'ab'

@pytest.mark.parametrize('title', ['a  b', ' a b '])
def test_spaces(title):
    assert slug(title) == 'a-b'
"""
COINS = {
    "src/coins/__init__.py": "def change(amount, coins):\n    return [] if amount == 0 else None\n",
    "tests/test_zero.py": "from coins import change\n\ndef test_zero():\n    assert change(0, [1]) == []\n",
}
COINS_MENDED = """def change(amount, coins):
    best = {0: []}
    for total in range(1, amount + 1):
        ways = [best[total - coin] + [coin] for coin in coins if best.get(total - coin) is not None]
        best[total] = min(ways, key=len, default=None)
    return best[amount]
"""
COINS_TESTS = """from coins import change

def test_fewest():
    assert sorted(change(6, [1, 3, 4])) == [3, 3]

def test_none():
    assert change(3, [2]) is None
"""


NEW_FILE = "diff --git a/x {path}\nnew file mode {mode}\n--- /dev/null\n+++ {path}\n@@ -0,0 +1 @@\n+x\n"


def git(folder: Path, *command: str) -> str:
    given = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t", *command]
    return subprocess.run(given, check=True, capture_output=True, text=True, timeout=60).stdout


def made(folder: Path, files: Mapping[str, str], mended: Mapping[str, str], tests: Mapping[str, str]) -> dict[str, str]:
    """Make a repository, and return its commit, and the patches to its mend and its tests."""

    def put(texts: Mapping[str, str]) -> None:
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        git(folder, "add", "-A")

    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    put(files)
    git(folder, "commit", "-q", "-m", "start")
    found = {"base_commit": git(folder, "rev-parse", "HEAD").strip()}
    for name, texts in (("patch", mended), ("test_patch", tests)):
        put(texts)
        found[name] = git(folder, "diff", "--cached")
        git(folder, "reset", "-q", "--hard")
    put({**mended, **tests})
    git(folder, "commit", "-q", "-m", "the future, which no agent may see")
    return found


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """A row as SWE-bench writes it, whose lists are texts, and one as SWE-Gym does."""
    root = tmp_path_factory.mktemp("repositories")
    slugs = made(root / "made" / "slugs", SLUGS, {"slugs/make.py": SLUGS_MENDED}, {"tests/test_slugs.py": SLUGS_TESTS})
    coins = made(
        root / "made__coins", COINS, {"src/coins/__init__.py": COINS_MENDED}, {"tests/test_coins.py": COINS_TESTS}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTRL_REPOSITORIES", str(root))
        yield [
            {
                **slugs,
                "instance_id": "made__slugs-1",
                "repo": "made/slugs",
                "problem_statement": "slug() leaves two dashes where a title has two spaces.",
                "FAIL_TO_PASS": json.dumps(
                    ["tests/test_slugs.py::test_spaces[a  b]", "tests/test_slugs.py::test_spaces["]
                ),
                "PASS_TO_PASS": json.dumps(["tests/test_slugs.py::test_lower"]),
                "hints_text": "",
                "version": "1",
            },
            {
                **coins,
                "instance_id": "made__coins-2",
                "repo": "made/coins",
                "problem_statement": "change() finds no coins.",
                "FAIL_TO_PASS": ["tests/test_coins.py::test_fewest"],
                "PASS_TO_PASS": ["tests/test_coins.py::test_none", "tests/test_zero.py::test_zero"],
            },
        ]


@pytest.fixture
def source(rows: list[dict[str, Any]], tmp_path: Path) -> str:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"swe:{file}"


@pytest.fixture
def tasks(source: str) -> list[dict[str, Any]]:
    return list_tasks(source, task_type=task_type_of(harness.run))


def write(path: str, text: str) -> str:
    return f"mkdir -p $(dirname {path}); cat > {path} <<'END'\n{text}\nEND\n"


async def outcome_of(command: str, task: dict[str, Any], backend: BackendName) -> Outcome:
    """Run an episode in which the model calls its shell once, and then says that it is done."""

    def says(request: Mapping[str, Any]) -> Any:
        if request["messages"][-1]["role"] == "tool":
            return "Done."
        call = {"name": "shell", "arguments": json.dumps({"command": command})}
        return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": call}]}

    config = RunConfig.model_validate({"sandbox": {"backend": backend, "leases": 2}})
    async with (
        ScriptedModel(says).serve() as url,
        open_run_sandboxes(config) as sandboxes,
        remote_runner(
            harness.run, base_url=url, api_key="-", model="scripted", timeout_s=120, sandboxes=sandboxes
        ) as opened,
    ):
        return await opened.run(task, 0)


async def test_a_mend_earns_1(tasks: list[dict[str, Any]], backend: BackendName) -> None:
    slugs, coins = tasks
    for task, mend in (
        (slugs, write("slugs/make.py", SLUGS_MENDED)),
        (coins, write("src/coins/__init__.py", COINS_MENDED)),
    ):
        done = await outcome_of(mend, task, backend)
        assert (done.error, done.reward, done.metrics["tests_passed"]) == (None, 1.0, 1.0)


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_what_tests_print_decides_nothing(tasks: list[dict[str, Any]], bubblewrap: BackendName) -> None:
    loud = "\n\ndef test_of_no_list():\n    print('x' * 10_000_000)\n    assert False\n"
    files = {name: text + loud for name, text in tasks[0]["tests"]["files"].items()}
    task = {**tasks[0], "tests": {**tasks[0]["tests"], "files": files}}
    done = await outcome_of(write("slugs/make.py", SLUGS_MENDED), task, bubblewrap)
    assert (done.error, done.reward) == (None, 1.0)


PASSES_ALL = "import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport(item, call):\n    report = yield\n    report.outcome = 'passed'\n    return report\n"
NO_MENDS = {
    "nothing": "true",
    "the tests emptied": write("tests/test_slugs.py", "def test_lower(): pass\ndef test_spaces(): pass\n"),
    "the tests gone": "rm -rf tests",
    "a folder in the place of a test": "rm tests/test_slugs.py; mkdir tests/test_slugs.py",
    "a conftest that makes all pass": write("conftest.py", PASSES_ALL) + write("tests/conftest.py", PASSES_ALL),
    "an end with exit code 0": write("slugs/make.py", "import os\nos._exit(0)"),
    "a mend that breaks what passed": write("slugs/make.py", "def slug(title):\n    return 'a-b'\n"),
    "everything gone": "rm -rf ..?* .[!.]* *",
    "the future": "git log; git checkout -q master; git checkout -q main",
}


SHARPEST = ("nothing", "a conftest that makes all pass", "an end with exit code 0")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=name, marks=[] if name in SHARPEST else pytest.mark.soak)
        for name, command in NO_MENDS.items()
    ],
)
async def test_what_is_no_mend_earns_nothing(
    tasks: list[dict[str, Any]], bubblewrap: BackendName, command: str
) -> None:
    done = await outcome_of(command, tasks[0], bubblewrap)
    assert (done.error, done.reward) == (None, 0.0)


def test_the_repository_stays_as_it_is_and_no_agent_sees_a_solution(
    source: str, rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    slugs = list_tasks(source)[0]
    folder = Path(slugs["repository"]["git"])
    before = sorted(path for path in folder.rglob("*"))
    list_tasks(source)
    assert sorted(path for path in folder.rglob("*")) == before
    assert git(folder, "status", "--porcelain") == ""
    assert slugs["prompt"] == rows[0]["problem_statement"]
    assert slugs["repository"]["commit"] == rows[0]["base_commit"]
    assert slugs["tests"]["files"] == {"tests/test_slugs.py": SLUGS_TESTS}


def test_the_agent_may_be_named(source: str) -> None:
    assert list_tasks(f"{source}@codex")[0]["harness"] == "codex"
    assert list_tasks(source)[0]["harness"] == "shell"
    with pytest.raises(TaskFileError, match="there is no harness 'codx'; did you mean 'codex'"):
        list_tasks(f"{source}@codx", task_type=task_type_of(harness.run))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repo": "made/other"}, r"row 0 \(made__slugs-1\): the repository made/other is not in .*git clone --mirror"),
        ({"repo": "../made/slugs"}, "row 0 .*: repo: "),
        ({"base_commit": "0" * 40}, "row 0 .*read-tree 0000"),
        ({"base_commit": "--help"}, "row 0 .*: base_commit: "),
        ({"test_patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-no\n+yes\n"}, "test_patch does not apply to base_commit"),
        ({"FAIL_TO_PASS": "[]"}, "row 0 .*: FAIL_TO_PASS: "),
        ({"FAIL_TO_PASS": "tests/test_slugs.py"}, "FAIL_TO_PASS: a text must hold a JSON list"),
        ({"FAIL_TO_PASS": ["test_x (module.Case)"]}, "is no id of pytest"),
        ({"FAIL_TO_PASS": ["../x.py::test"]}, "is no id of pytest"),
        ({"FAIL_TO_PASS": ["tests/test_none.py::test"]}, "row 0 .*tests/test_none.py"),
        (
            {"FAIL_TO_PASS": ["tests/test_slugs.py::test_nowhere"]},
            "row 0 .*the test 'tests/test_slugs.py::test_nowhere' is nowhere: .* has the name 'test_nowhere'",
        ),
        (
            {"PASS_TO_PASS": ["tests/test_slugs.py::TestSlugs::test_lower"]},
            "row 0 .*'tests/test_slugs.py::TestSlugs::test_lower' is nowhere: .* has the name 'TestSlugs'",
        ),
        ({"problem_statement": ""}, "row 0 .*: problem_statement: "),
        ({"instance_id": None}, "row 0 .*: instance_id: "),
        ({"FAIL_TO_PASS": ["tests/\0.py::test"]}, "row 0 .*null byte"),
        ({"test_patch": "\ud800"}, "line 1: .*surrogate"),
        (
            {"test_patch": NEW_FILE.format(mode=100644, path='"b/\\377.py"')},
            "row 0 .*test_patch: a path in it is not UTF-8",
        ),
        ({"test_patch": NEW_FILE.format(mode=120000, path="b/link")}, "row 0 .*the test file link is a link"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_before_a_run(
    rows: list[dict[str, Any]], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({**rows[0], **change}) + "\n")
    with pytest.raises(TaskFileError, match=message):
        list_tasks(f"swe:{file}")


def test_a_test_that_is_inherited_or_made_by_a_decorator_is_taken_for_one(rows: list[dict[str, Any]]) -> None:
    """Of what a file does not say itself, pytest knows more than can be read."""
    adds = NEW_FILE.format(mode=100644, path="b/tests/test_more.py").partition("@@")[0]
    lines = [
        "from parameterized import parameterized",
        "from tests.test_slugs import *",
        "@parameterized.expand([(1, 'one')])",
        "def test_each_one(): pass",
    ]
    adds += f"@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)
    for name in ("test_lower", "test_each_one_0_one", "test_each_one[a::b]", "test_more.doc"):
        row = {**rows[0], "test_patch": adds, "FAIL_TO_PASS": [f"tests/test_more.py::{name}"], "PASS_TO_PASS": []}
        [task] = swe_rows.tasks_of_rows([row])
        assert task["tests"]["must_pass"] == row["FAIL_TO_PASS"]


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_all_rows_that_cannot_be_used_are_one_error_and_vet_reports_each(
    rows: list[dict[str, Any]], tmp_path: Path, bubblewrap: BackendName, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: list[dict[str, Any]] = [
        {"repo": "made/other"},
        {"base_commit": "0" * 40},
        {"FAIL_TO_PASS": ["tests/test_slugs.py::test_nowhere"]},
    ]
    bad = [{**rows[0], **change, "instance_id": f"bad-{index}"} for index, change in enumerate(changes)]
    file, report, kept = (tmp_path / name for name in ("rows.jsonl", "report.json", "tasks.jsonl"))
    file.write_text("".join(json.dumps(row) + "\n" for row in (bad[0], rows[1], *bad[1:])))
    with pytest.raises(TaskFileError, match=r"3 of 4 rows cannot be used.*agentrl vet swe:.* --output") as refused:
        list_tasks(f"swe:{file}@codex", task_type=task_type_of(harness.run))
    for told in ("row 0 (bad-0): the repository made/other", "row 2 (bad-1): ", "row 3 (bad-2): the test "):
        assert told in str(refused.value)
    given = ["vet", f"swe:{file}", "--runs", "1", "--report", str(report), "--output", str(kept)]
    keys = tmp_path / "keys.toml"
    keys.write_text('[data.columns]\nprompt = "prompt"\nharness = "harness"\nsolution = "solution"\n')
    given += ["--config", str(keys)]
    assert main([*given, "--sandbox.backend", str(bubblewrap)]) == 1, capsys.readouterr()
    faults = {task["name"]: task["faults"] for task in json.loads(report.read_text())["refused_tasks"]}
    assert {name: [fault["kind"] for fault in found] for name, found in faults.items()} == {
        f"bad-{index}": ["unreadable"] for index in range(3)
    }
    assert "test_nowhere" in faults["bad-2"][0]["detail"]
    [task] = list_tasks(str(kept), task_type=task_type_of(harness.run))
    assert task["name"] == "made__coins-2"


def test_a_folder_in_another_repository_is_not_taken_for_the_rows(
    rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "another")
    (tmp_path / "repositories" / "made" / "slugs").mkdir(parents=True)
    monkeypatch.setenv("AGENTRL_REPOSITORIES", str(tmp_path / "repositories"))
    with pytest.raises(TaskFileError, match=r"row 0 .*not a git repository"):
        list(swe_rows.tasks_of_rows([{**rows[0], "base_commit": "HEAD"}]))


def test_a_repository_that_no_sandbox_has_room_for_is_named_before_a_run(
    rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(swe_rows, "MAX_PACKED_BYTES", 2000)
        with pytest.raises(TaskFileError, match=r"row 0 .*base_commit: the repository has 0 MB"):
            list(swe_rows.tasks_of_rows(rows))
    monkeypatch.setattr(swe_rows, "FILES", 6)
    with pytest.raises(TaskFileError, match=r"row 0 .*base_commit: the repository has 6 files and folders"):
        list(swe_rows.tasks_of_rows(rows))


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_the_commit_and_the_files_that_a_patch_removes_are_the_data_sets(
    rows: list[dict[str, Any]], bubblewrap: BackendName
) -> None:
    removes = (
        "diff --git a/pyproject.toml b/pyproject.toml\ndeleted file mode 100644\n--- a/pyproject.toml\n+++ /dev/null\n"
        "@@ -1,3 +0,0 @@\n-[project]\n-name = 'slugs'\n-version = '1'\n"
    )
    test = "def test_gone():\n    import os\n    assert not os.path.exists('pyproject.toml')\n"
    adds = NEW_FILE.format(mode=100644, path="b/tests/test_gone.py").partition("@@")[0]
    adds += "@@ -0,0 +1,3 @@\n" + "".join(f"+{line}\n" for line in test.splitlines())
    row = {**rows[0], "base_commit": "HEAD~1", "test_patch": removes + adds}
    row |= {"FAIL_TO_PASS": ["tests/test_gone.py::test_gone"], "PASS_TO_PASS": []}
    [task] = await in_thread(lambda: list(swe_rows.tasks_of_rows([row])))
    assert task["repository"]["commit"] == rows[0]["base_commit"]
    done = await outcome_of(write("pyproject.toml", "[tool]"), task, bubblewrap)
    assert (done.error, done.reward) == (None, 1.0)


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_vet_finds_rows_whose_solution_fails_or_whose_tests_pass_for_nothing(
    rows: list[dict[str, Any]], tmp_path: Path, bubblewrap: BackendName, capsys: pytest.CaptureFixture[str]
) -> None:
    slugs, coins = rows
    free = {**slugs, "instance_id": "free", "FAIL_TO_PASS": slugs["PASS_TO_PASS"]}
    wrong = {**coins, "instance_id": "wrong", "patch": slugs["patch"].replace("slugs/make.py", "src/coins/__init__.py")}
    breaks = {
        **slugs,
        "instance_id": "breaks",
        "patch": slugs["patch"].replace("'-'.join(title.lower().split())", "'a-b'"),
    }
    unsolved = {**coins, "instance_id": "unsolved", "patch": ""}
    nowhere = {**coins, "instance_id": "nowhere", "image_name": "agentrl/not-there:1"}
    file, report = tmp_path / "rows.jsonl", tmp_path / "report.json"
    file.write_text("".join(json.dumps(row) + "\n" for row in (nowhere, slugs, coins, free, wrong, breaks, unsolved)))
    given = ["vet", f"swe:{file}", "--runs", "1", "--report", str(report), "--sandbox.backend", str(bubblewrap)]
    assert main(given) == 1, capsys.readouterr()
    refused = {
        task["name"]: [fault["kind"] for fault in task["faults"]]
        for task in json.loads(report.read_text())["refused_tasks"]
    }
    assert refused == {
        "nowhere": ["unsupported"],
        "free": ["free"],
        "wrong": ["unreadable"],
        "breaks": ["reference_fails"],
        "unsolved": ["no_reference"],
    }


def test_vet_refuses_tasks_of_several_kinds_which_no_one_examination_fits(
    rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [task] = swe_rows.tasks_of_rows(rows[:1])
    file = tmp_path / "tasks.jsonl"
    code = {"prompt": "Write f.", "tests": [{"stdin": "1", "stdout": "1"}]}
    file.write_text("".join(json.dumps(one) + "\n" for one in (code, task)))
    assert main(["vet", str(file)]) == 2
    assert "of several kinds (code, repositories with hidden tests); vet those of each kind" in capsys.readouterr().err
