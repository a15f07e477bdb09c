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
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.run_episode import remote_runner
from agentrl.sandboxes.backends.docker_images import ImageSource, built_image
from agentrl.store.outcome import Outcome
from agentrl.tasks import swe_rows
from agentrl.tasks.harbor import folder_digest, split_agent
from agentrl.tasks.task_type import check_usable, task_type_of
from agentrl.tasks.tasks import list_tasks
from agentrl.testing import ScriptedModel, ToolCall
from agentrl.workflows import harness
from agentrl.workflows.vet_agent_tasks import vet_agent_task
from tests.sandboxes.test_container import left

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("docker"), pytest.mark.timeout(180)]
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


async def outcome_of(command: str, task: dict[str, Any]) -> Outcome:
    """Run an episode in which the model calls its shell once, and then says that it is done."""
    config = RunConfig.model_validate({"rollout": {"max_concurrent": 1}})
    model = ScriptedModel(ToolCall("shell", {"command": command}), "Done.")
    async with (
        model.serve() as url,
        open_run_sandboxes(config) as sandboxes,
        remote_runner(
            harness.run, base_url=url, api_key="-", model="scripted", timeout_s=120, sandboxes=sandboxes
        ) as opened,
    ):
        done = await opened.run(task, 0)
    assert await in_thread(left) == []
    return done


async def test_a_mend_earns_1_and_doing_nothing_nothing(tasks: list[dict[str, Any]]) -> None:
    slugs, coins = tasks
    mends = ((slugs, write("slugs/make.py", SLUGS_MENDED)), (coins, write("src/coins/__init__.py", COINS_MENDED)))
    for task, mend in mends:
        done = await outcome_of(f"ls -a; {mend}", task)
        assert (done.error, done.reward) == (None, 1.0)
    emptied = write("tests/test_slugs.py", "def test_lower(): pass\ndef test_spaces(): pass\n")
    assert (await outcome_of(emptied, slugs)).reward == 0.0


IMAGE = """FROM agentrl/sandbox
RUN mkdir -p /tmp/it/DEBIAN /tmp/it/usr/lib/python3/dist-packages && printf 'Package: ways\\nVersion: 1\\nArchitecture: all\\nMaintainer: it\\nDescription: it\\n' > /tmp/it/DEBIAN/control \\
 && echo 'joined = "-".join' > /tmp/it/usr/lib/python3/dist-packages/ways.py && dpkg-deb -b /tmp/it /opt/ways.deb
COPY . /testbed
WORKDIR /testbed
"""


async def test_a_row_whose_image_has_the_repository_is_mended_with_a_package_that_the_agent_installs(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    def made() -> ImageSource:
        for path, text in SLUGS.items():
            (tmp_path / "it" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "it" / path).write_text(text)
        (tmp_path / "it" / "Dockerfile").write_text(IMAGE)
        return ImageSource("slugs", tmp_path / "it", folder_digest(tmp_path / "it"), 120)

    image = await built_image(await in_thread(made))
    given = [{**rows[0], "docker_image": image}]
    (task,) = swe_rows.tasks_of_rows(given)
    assert "repository" not in task
    mend = "dpkg -i /opt/ways.deb && " + write(
        "slugs/make.py", "import ways\ndef slug(title):\n    return ways.joined(title.lower().split())\n"
    )
    done = await outcome_of(mend, task)
    assert (done.error, done.reward) == (None, 1.0)
    assert (await vet_agent_task(task, image="agentrl/sandbox", runs=1)).faults == ()
    wrong = await vet_agent_task({**task, "solution": ""}, image="agentrl/sandbox", runs=1)
    assert [fault.kind.value for fault in wrong.faults] == ["no_reference"]


def test_a_repository_with_a_runner_of_its_own_is_tested_by_that(rows: list[dict[str, Any]]) -> None:
    own = {"repo": "django/django", "docker_image": "d/d", "FAIL_TO_PASS": ["test_a (slugs.T)"], "PASS_TO_PASS": []}
    (task,) = swe_rows.tasks_of_rows([{**rows[0], **own}])
    assert task["tests"]["command"] == [*swe_rows.RUNNERS["django/django"].split(), "test_slugs"]
    assert task["setup"] == swe_rows.CONDA


@pytest.mark.parametrize("source", ["swe:{file}@codex", "swe:hf:them@test@codex"])
def test_the_agent_may_be_named(source: str) -> None:
    assert split_agent(source.removeprefix("swe:"))[1] == "codex"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"FAIL_TO_PASS": "no list"}, "the field 'FAIL_TO_PASS': expecting value"),
        ({"FAIL_TO_PASS": []}, "the field 'FAIL_TO_PASS': list should have at least 1 item"),
        ({"FAIL_TO_PASS": ["test_a (slugs.T)"]}, "the test 'test_a .slugs.T.' is no id of pytest"),
        ({"repo": "made/nothing"}, "the repository made/nothing is not in .*clone it there"),
        ({"repo": "../made"}, "the field 'repo': string should match"),
        ({"problem_statement": ""}, "the field 'problem_statement': string should have"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_before_a_run(
    rows: list[dict[str, Any]], changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(TaskFileError, match=rf"row 1 \(made__slugs-1\): {complaint}"):
        check_usable("swe:rows", swe_rows.tasks_of_rows([rows[1], {**rows[0], **changes}]))


def test_vet_reports_each_row_that_cannot_be_used(
    rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({**rows[0], "repo": "made/nothing"}) + "\n")
    assert main(["vet", f"swe:{file}", "--runs", "1"]) == 1
    assert "unreadable" in capsys.readouterr().out
