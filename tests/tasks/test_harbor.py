"""Folders of terminal tasks as a source: what is read of them, and what is wrong with those that cannot be used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import TaskFileError
from agentrl.tasks.harbor import folder_digest, read_task_folder, tasks_of_folder
from agentrl.tasks.harbor_settings import Solution
from agentrl.tasks.task_type import task_type_of
from agentrl.tasks.tasks import fingerprint, list_tasks, open_tasks
from agentrl.workflows import terminal_task

FOLDERS = Path(__file__).parents[1] / "workflows" / "terminal_tasks"
HARBOR = {
    "task.toml": "",
    "instruction.md": "Do it.",
    "environment/Dockerfile": "FROM agentrl/sandbox\n",
    "tests/test.sh": "#!/bin/sh\n",
}


def folder_of(tmp_path: Path, files: dict[str, str | None]) -> Path:
    for path, text in files.items():
        if text is not None:
            file = tmp_path / "a-task" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())
    return tmp_path / "a-task"


def test_a_folder_of_folders_is_a_list_of_tasks() -> None:
    tasks = open_tasks(f"harbor:{FOLDERS}", task_type_of(terminal_task.run))
    assert isinstance(tasks, list)
    assert [task["name"] for task in tasks] == ["greeting", "word_count"]
    assert tasks[0]["prompt"].startswith('Write the line "Hello, world!"')
    assert tasks == list_tasks(f"harbor:{FOLDERS}")
    assert list_tasks(f"harbor:{FOLDERS / 'greeting'}") == tasks[:1]


def test_the_agent_is_named_after_an_at_sign(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "with@sign", {**HARBOR})
    assert [task["agent"] for task in list_tasks(f"harbor:{folder}")] == ["shell"]
    assert [task["agent"] for task in list_tasks(f"harbor:{folder}@codex")] == ["codex"]
    with pytest.raises(TaskFileError, match="there is no harness 'codx'; use shell, claude-code, codex"):
        open_tasks(f"harbor:{folder}@codx", task_type_of(terminal_task.run))


def test_settings_are_read_in_the_words_of_every_schema(tmp_path: Path) -> None:
    word_count = read_task_folder(FOLDERS / "word_count")
    environment = word_count.settings.environment
    assert (environment.memory_mb, environment.storage_mb, environment.cpus) == (512, 64, 1.0)
    assert word_count.settings.verifier.timeout_sec == 20.0
    text = 'schema_version = "1.4"\nfuture = 1\n[environment]\nmemory = "2G"\nworkdir = "/work"\nallow_internet = true\nnew = [1]\n'
    found = read_task_folder(folder_of(tmp_path, {**HARBOR, "task.toml": text}))
    assert (found.settings.environment.memory_mb, found.settings.environment.workdir) == (2048, "/work")
    assert found.settings.agent.timeout_sec == 600.0
    assert found.solution is None


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("<!-- x-canary GUID 1 -->\n# Canary 2\n\n# Title\n# canary\n", "# Title\n# canary\n"),
        ("Do it.\n<!-- canary -->", "Do it.\n<!-- canary -->"),
        ("\n\nDo it.", "Do it."),
    ],
)
def test_no_agent_sees_the_marks_of_benchmark_data(tmp_path: Path, written: str, shown: str) -> None:
    assert read_task_folder(folder_of(tmp_path, {**HARBOR, "instruction.md": written})).instruction == shown


def test_a_task_is_another_when_a_file_of_it_is(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {**HARBOR})
    before = list_tasks(f"harbor:{folder}")
    (folder / "tests" / "test.sh").chmod(0o755)
    between = list_tasks(f"harbor:{folder}")
    (folder / "tests" / "link").symlink_to("test.sh")
    after = list_tasks(f"harbor:{folder}")
    assert len({fingerprint(tasks) for tasks in (before, between, after)}) == 3
    assert after == list_tasks(f"harbor:{folder}")


def test_variables_come_from_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_HERE", "here")
    given = {"A": "${SET_HERE}/x", "B": "${NOT_SET_HERE:-default}", "C": "$SET_HERE"}
    assert Solution(env=given).env == {"A": "here/x", "B": "default", "C": "$SET_HERE"}


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"task.toml": None}, "holds no task folders: neither it nor a folder in it has a task.toml"),
        ({"task.toml": "["}, "task.toml: not valid TOML"),
        ({"task.toml": "[agent]\ntimeout_sec = 0"}, "task.toml, the field 'agent.timeout_sec': input should be greater than 0, not 0"),
        ({"task.toml": "[environment]\nmemory = 'much'"}, "task.toml, the field 'environment.memory': input should be a valid integer"),
        ({"task.toml": "[environment]\ngpus = 1"}, "task.toml, the field 'environment': gpus cannot be had in a container"),
        ({"task.toml": "[environment]\nos = 'windows'"}, "the field 'environment.os': input should be 'linux'"),
        ({"task.toml": "[environment]\nworkdir = 'app'"}, "the field 'environment.workdir': string should match pattern"),
        ({"task.toml": "[environment]\nenv = {A = '${NOT_SET_HERE}'}"}, "the field 'environment.env': names a variable that is not set on this machine, in ${NOT_SET_HERE}; set it"),
        ({"task.toml": "[[steps]]\nname = 'one'"}, "a task of several steps ([[steps]]) is not run"),
        ({"environment/docker-compose.yaml": "services: {main: , api: {build: ./api}}"}, "docker-compose.yaml: services of Docker Compose are not started"),
        ({"instruction.md": "# canary"}, "instruction.md: the instruction is empty"),
        ({"instruction.md": None}, "instruction.md cannot be read: No such file or directory"),
        ({"environment/Dockerfile": None}, "the task has no image; write "),
        ({"tests/test.sh": None}, "tests/test.sh is missing: it runs the tests and writes the reward to /logs/verifier/reward.txt"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_used_says_why(tmp_path: Path, files: dict[str, Any], complaint: str) -> None:
    folder = folder_of(tmp_path, {**HARBOR, **files})
    with pytest.raises(TaskFileError) as refused:
        open_tasks(f"harbor:{folder}")
    assert complaint in str(refused.value)
    assert str(folder) in str(refused.value)


def test_all_folders_that_cannot_be_used_are_named_at_once(tmp_path: Path) -> None:
    for number in range(8):
        made = folder_of(tmp_path / f"{number}", {**HARBOR, "instruction.md": "" if number else "Do it."})
        made.rename(tmp_path / f"task-{number}")
    with pytest.raises(TaskFileError) as refused:
        open_tasks(f"harbor:{tmp_path}")
    said = str(refused.value)
    assert "7 of 8 tasks cannot be used: mend them, or use those that `agentrl vet" in said
    assert said.count("the instruction is empty") == 5
    names = [task["name"] for task in tasks_of_folder(str(tmp_path))]
    assert names == [f"task-{number}" for number in range(8)]


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {**HARBOR})
    os.symlink(b"\xff", bytes(folder / "link"))
    assert folder_digest(folder)
    os.mkfifo(folder / "pipe")
    with pytest.raises(TaskFileError, match="pipe is no file, folder or link"):
        folder_digest(folder)


def test_a_folder_that_is_not_there_or_has_no_prefix_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match=r"there is no folder .*/nowhere; name one that holds tasks"):
        open_tasks(f"harbor:{tmp_path}/nowhere")
    with pytest.raises(TaskFileError, match=f"{tmp_path} is a folder; use harbor:{tmp_path} for folders of Harbor's"):
        open_tasks(str(tmp_path))
