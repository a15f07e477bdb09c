"""Folders of terminal tasks as a source: what is read of them, and what is wrong with those that cannot be used."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import TaskFileError
from agentrl.rollout.compose_file import environment_of_service
from agentrl.rollout.compose_interpolation import interpolate
from agentrl.rollout.folder_digest import folder_digest
from agentrl.rollout.task_folders import read_task_folder, tasks_of_folder, unusable_folder, variables
from agentrl.rollout.task_type import task_type_of
from agentrl.rollout.tasks import fingerprint, list_tasks, open_tasks
from agentrl.sandboxes.task_image import TaskImage
from agentrl.workflows import terminal_task
from agentrl.workflows.task_verifier import OpenTask, image_source

FOLDERS = Path(__file__).parents[1] / "workflows" / "terminal_tasks"
HARBOR = {
    "task.toml": "",
    "instruction.md": "Do it.",
    "environment/Dockerfile": "FROM agentrl/sandbox\n",
    "tests/test.sh": "#!/bin/sh\n",
}
OLDER = {
    "task.yaml": "instruction: Do it.\nparser_name: pytest\nmax_agent_timeout_sec: 7\nmax_test_timeout_sec: 8\n",
    "Dockerfile": "FROM agentrl/sandbox\n",
    "run-tests.sh": "pytest\n",
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
    with pytest.raises(TaskFileError, match="there is no harness 'codx'; did you mean 'codex'"):
        open_tasks(f"harbor:{folder}@codx", task_type_of(terminal_task.run))


def test_settings_are_read_in_the_words_of_every_schema(tmp_path: Path) -> None:
    word_count = read_task_folder(FOLDERS / "word_count")
    environment = word_count.settings.environment
    assert (environment.memory_mb, environment.storage_mb, environment.cpus) == (512, 64, 1.0)
    assert word_count.settings.metadata.agentrl.writable == ("/srv/data",)
    assert word_count.settings.verifier.timeout_sec == 20.0
    text = 'schema_version = "1.4"\nfuture = 1\n[environment]\nmemory = "2G"\nworkdir = "/work"\nallow_internet = true\nnew = [1]\n'
    found = read_task_folder(folder_of(tmp_path, {**HARBOR, "task.toml": text}))
    assert (found.settings.environment.memory_mb, found.settings.environment.workdir) == (2048, "/work")
    assert found.settings.agent.timeout_sec == 600.0
    assert found.solution is None


def test_the_older_form_says_the_same(tmp_path: Path) -> None:
    compose = "services:\n  client:\n    build: .\n"
    found = read_task_folder(folder_of(tmp_path, {**OLDER, "docker-compose.yaml": compose, "solution.sh": ""}))
    assert (found.form, found.instruction, found.test_script) == ("terminal-bench", "Do it.", "run-tests.sh")
    assert (found.settings.agent.timeout_sec, found.settings.verifier.timeout_sec) == (7, 8)
    assert found.settings.verifier.env == {"TEST_DIR": "/tests"}
    assert found.solution == found.folder / "solution.sh"


def test_the_older_form_has_its_own_time_when_it_names_none(tmp_path: Path) -> None:
    found = read_task_folder(folder_of(tmp_path, {**OLDER, "task.yaml": "instruction: Do it."})).settings
    assert (found.agent.timeout_sec, found.verifier.timeout_sec) == (360, 60)


@pytest.mark.parametrize("variables", ["{A: 1, B: '${T_BENCH_TEST_DIR}'}", "[A=1, 'B=${T_BENCH_TEST_DIR}']"])
def test_the_one_service_of_a_compose_file_is_what_the_agent_works_in(tmp_path: Path, variables: str) -> None:
    service = (
        f"{{build: {{context: ./, dockerfile: Dockerfile}}, working_dir: /srv, environment: {variables}, tty: true}}"
    )
    older = folder_of(tmp_path / "older", {**OLDER, "docker-compose.yaml": f"services: {{client: {service}}}"})
    harbor = folder_of(
        tmp_path / "harbor",
        {
            **HARBOR,
            "environment/docker-compose.yaml": f"services: {{main: {service}}}",
            "task.toml": "[environment]\nenv = {C = '2'}\nmemory = '1G'",
        },
    )
    found, other = (read_task_folder(folder).settings.environment for folder in (older, harbor))
    assert (found.workdir, found.service_env) == ("/srv", {"A": "1"})
    assert (other.workdir, other.service_env, other.env, other.memory_mb) == ("/srv", {"A": "1"}, {"C": "2"}, 1024)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_HERE", "here")
    monkeypatch.setenv("EMPTY_HERE", "")
    monkeypatch.delenv("NOT_SET_HERE", raising=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("$$", "$"),
        ("a$$b$$$$c", "a$b$$c"),
        ("$${SET_HERE} $$SET_HERE $$$SET_HERE", "${SET_HERE} $SET_HERE $here"),
        ("$SET_HERE.x ${SET_HERE}x", "here.x herex"),
        ("[$NOT_SET_HERE][${NOT_SET_HERE}][${EMPTY_HERE}]", "[][][]"),
        ("${SET_HERE:-y} ${SET_HERE-y} ${SET_HERE:?y} ${SET_HERE?y}", "here here here here"),
        ("[${EMPTY_HERE:-y}][${EMPTY_HERE-y}][${EMPTY_HERE?y}]", "[y][][]"),
        ("[${NOT_SET_HERE:-y}][${NOT_SET_HERE-y}][${NOT_SET_HERE:-}][${NOT_SET_HERE-}]", "[y][y][][]"),
        ("[${SET_HERE:+y}][${SET_HERE+y}][${EMPTY_HERE:+y}][${EMPTY_HERE+y}][${NOT_SET_HERE+y}]", "[y][y][][y][]"),
        ("${NOT_SET_HERE:-a-b:c?d+e}", "a-b:c?d+e"),
        ("${NOT_SET_HERE:-${EMPTY_HERE:-${SET_HERE}/x}}y}", "here/xy}"),
        ("${NOT_SET_HERE:-$SET_HERE $$}", "here $"),
        ("${NOT_SET_HERE:-{a}", "{a"),
        ("${NOT_SET_HERE:-two\nlines}", "two\nlines"),
    ],
)
def test_variables_of_a_compose_file_are_filled_in_as_docker_compose_does(
    machine: None, tmp_path: Path, text: str, value: str
) -> None:
    written = json.dumps({"services": {"main": {"environment": {"A": text}, "working_dir": f"/{text}"}}})
    assert interpolate(text, os.environ.get) == value
    found = environment_of_service(compose_of(tmp_path, written))
    assert (found["service_env"], found["workdir"]) == ({"A": value}, f"/{value}")
    as_list = json.dumps({"services": {"main": {"environment": [f"A={text}"]}}})
    assert environment_of_service(compose_of(tmp_path, as_list))["service_env"] == {"A": value}
    harbor = folder_of(tmp_path / "harbor", {**HARBOR, "environment/docker-compose.yaml": as_list})
    older = folder_of(tmp_path / "older", {**OLDER, "docker-compose.yaml": as_list})
    for folder in (harbor, older):
        assert read_task_folder(folder).settings.environment.service_env == {"A": value}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("5 $ a", r"'\$ a' begins no variable, such as \$NAME, .*; a dollar sign itself is \$\$"),
        ("$", "begins no variable"),
        ("$1", "begins no variable"),
        ("${", "begins no variable"),
        ("${SET_HERE", "begins no variable"),
        ("${SET HERE}", "begins no variable"),
        ("${SET_HERE:y}", "begins no variable"),
        ("${}", "begins no variable"),
        ("${NOT_SET_HERE:-$}", "begins no variable"),
        ("${NOT_SET_HERE?a key of $SET_HERE}", "the variable NOT_SET_HERE must be set, a key of here; set it"),
        ("${EMPTY_HERE:?}", "the variable EMPTY_HERE must be set; set it"),
    ],
)
def test_what_docker_compose_does_not_fill_in_is_refused(
    machine: None, tmp_path: Path, text: str, complaint: str
) -> None:
    for service in ({"environment": {"A": text}}, {"environment": [f"A={text}"]}):
        written = json.dumps({"services": {"main": service}})
        with pytest.raises(TaskFileError, match=rf"docker-compose.yaml, services\.main\.environment\.A: .*{complaint}"):
            environment_of_service(compose_of(tmp_path, written))


def test_a_variable_that_a_compose_file_passes_on_is_there_where_it_is_set(machine: None, tmp_path: Path) -> None:
    for given in (
        ["SET_HERE", "EMPTY_HERE", "NOT_SET_HERE"],
        dict.fromkeys(("SET_HERE", "EMPTY_HERE", "NOT_SET_HERE")),
    ):
        compose = compose_of(tmp_path, json.dumps({"services": {"main": {"environment": given}}}))
        assert environment_of_service(compose) == {"service_env": {"SET_HERE": "here", "EMPTY_HERE": ""}}
    compose.with_name(".env").write_text("# NOT_SET=1\nexport NOT_SET_HERE=there\nSET_HERE=there\n")
    with pytest.raises(TaskFileError, match=r"the variable NOT_SET_HERE is set in .*\.env, which is not read here"):
        environment_of_service(compose)


def test_a_programs_variables_are_the_images_the_compose_files_and_the_tasks(machine: None, tmp_path: Path) -> None:
    compose = json.dumps({"services": {"main": {"environment": {"A": "$${SET_HERE}", "B": "$SET_HERE", "C": "1"}}}})
    settings = "[environment.env]\nC = '${SET_HERE}'\n[verifier.env]\nD = '2'\n"
    folder = folder_of(tmp_path, {**HARBOR, "environment/docker-compose.yaml": compose, "task.toml": settings})
    image = TaskImage("i", "/app", ("/app",), {"B": "the image's", "E": "3"}, b"")
    task = OpenTask(read_task_folder(folder), image)
    shown = {"A": "${SET_HERE}", "B": "here", "C": "here", "E": "3"}
    assert shown.items() <= task.environment({}).items()
    assert {**shown, "D": "2"}.items() <= task.verifier_environment.items()


def compose_of(tmp_path: Path, written: str) -> Path:
    (tmp_path / "docker-compose.yaml").write_text(written)
    return tmp_path / "docker-compose.yaml"


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
    assert folder_digest(None, ["ab", "c"]) != folder_digest(None, ["a", "bc"])


def test_variables_come_from_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_HERE", "here")
    given = {"A": "${SET_HERE}/x", "B": "${NOT_SET_HERE:-default}", "C": "$SET_HERE"}
    assert variables(given, "task.toml") == {"A": "here/x", "B": "default", "C": "$SET_HERE"}
    with pytest.raises(TaskFileError, match=r"task\.toml names the variable NOT_SET_HERE, which is not set"):
        variables({"A": "${NOT_SET_HERE}"}, "task.toml")


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"task.toml": None}, "holds no task folders: neither it nor a folder in it has a task.toml"),
        ({"task.toml": "["}, "task.toml: not valid TOML"),
        ({"task.toml": "[agent]\ntimeout_sec = 0"}, "task.toml, agent.timeout_sec: Input should be greater than 0, not 0"),
        ({"task.toml": "[environment]\nmemory = 'much'"}, "task.toml, environment.memory_mb: "),
        ({"task.toml": "[agent]\ntimeout_sec = inf"}, "task.toml, agent.timeout_sec: Input should be a finite number, not inf"),
        ({"task.toml": f"a = {'[' * 5000}"}, "task.toml: not valid TOML"),
        ({"task.toml": "[environment]\nenv = {'A=B' = 'x'}"}, "environment.env: 'A=B' can be no variable"),
        ({"task.toml": "[verifier]\nenv = {A = '\\u0000'}".replace("'", '"')}, "verifier.env: 'A' can be no variable"),
        ({"task.toml": "[environment]\ngpus = 1"}, "task.toml, environment: gpus cannot be had in a sandbox"),
        ({"task.toml": "[environment]\nos = 'windows'"}, "os cannot be had in a sandbox"),
        ({"task.toml": "[environment]\nworkdir = 'app'"}, "environment.workdir: 'app' must be an absolute path"),
        ({"task.toml": "[environment]\nenv = {A = '${NOT_SET_HERE}'}"}, "environment.env names the variable NOT_SET_HERE"),
        ({"task.toml": "[verifier.environment]\ncpus = 1"}, "it runs in a new sandbox of the task's image"),
        ({"task.toml": "[[steps]]\nname = 'one'"}, "a task of several steps ([[steps]]) is not run"),
        ({"task.toml": "[metadata.agentrl]\nwriteable = ['/a']"}, "metadata.agentrl.writeable: Extra inputs"),
        ({"task.toml": "[environment]\ncpus = 0"}, "task.toml, environment.cpus: Input should be greater than or equal to 0.01, not 0"),
        ({"task.toml": "[environment]\ncpus = -1"}, "task.toml, environment.cpus: Input should be greater than or equal to 0.01, not -1"),
        ({"task.toml": "[environment]\ncpus = 1e300"}, "task.toml, environment.cpus: Input should be less than or equal to 1024, not 1e+300"),
        ({"task.toml": "[environment]\nmemory_mb = 0"}, "environment.memory_mb: Input should be greater than or equal to 16, not 0"),
        ({"task.toml": "[environment]\nmemory = '10 TB'"}, "environment.memory_mb: Input should be less than or equal to 4194304, not '10 TB'"),
        ({"task.toml": f"[environment]\nmemory = '{'9' * 400}G'"}, "environment.memory_mb: Input should be a valid integer"),
        ({"task.toml": "[environment]\nmemory_mb = 4_000_000"}, "environment.memory_mb: 4000000 MB are more than the "),
        ({"task.toml": "[environment]\nstorage_mb = -5"}, "environment.storage_mb: Input should be greater than 0, not -5"),
        ({"task.toml": "[agent]\ntimeout_sec = 1e12"}, "agent.timeout_sec: Input should be less than or equal to 2592000, not 1000000000000.0"),
        ({"task.toml": "[environment]\ndocker_image = 'Not An Image'"}, "environment.docker_image: 'Not An Image' can be no image's name"),
        ({"task.toml": "[environment]\ndocker_image = ''"}, "environment.docker_image: '' can be no image's name"),
        ({"task.toml": "[environment]\nworkdir = '/tmp'"}, "task.toml, environment: /tmp cannot be the agent's to write to: a sandbox has its own"),
        ({"task.toml": "[environment]\nworkdir = '//tmp'"}, "environment.workdir: '//tmp' must be an absolute path without"),
        ({"task.toml": '[environment]\nworkdir = "/a\\nb"'}, "must be an absolute path without"),
        ({"task.toml": "[environment]\nworkdir = '/sandbox/x'"}, "/sandbox/x cannot be the agent's"),
        ({"task.toml": "[environment]\nworkdir = '/tests/here'"}, "/tests/here is where the verifier finds its tests"),
        ({"task.toml": "[metadata.agentrl]\nwritable = ['/usr']"}, "task.toml, environment: /usr cannot be the agent's"),
        ({"task.toml": "[environment]\nworkdir = '/a'\n[metadata.agentrl]\nwritable = ['/a/b']"}, "/a/b is below another folder"),
        ({"environment/Dockerfile": "FROM x\nWORKDIR /tmp/work\n"}, "environment/Dockerfile, WORKDIR: /tmp/work cannot be the agent's"),
        ({"tests/test.sh": "#!/bin/sh\r\n"}, "tests/test.sh: its lines end as on Windows"),
        ({"solution/solve.sh": "#!/bin/sh\r\n"}, "solution/solve.sh: its lines end as on Windows"),
        ({"task.toml": "[environment]\nstorage = '1M'", "tests/big": "x" * 2**21}, "tests: its files take 3 MB, and environment.storage_mb"),
        ({"task.toml": "[[steps]]\nname = 'one'", "instruction.md": None}, "a task of several steps ([[steps]]) is not run"),
        ({"task.toml": "verifier = 1"}, "task.toml, verifier: "),
        ({"task.toml": "[environment]\nenv = 1", "environment/docker-compose.yaml": "services: {main: {environment: [A=1]}}"}, "environment.env: "),
        ({"task.toml": "[verifier]\nenvironment_mode = 'separate'", "tests/Dockerfile": ""}, "tests/Dockerfile: an image of the verifier's own"),
        ({"environment/docker-compose.yaml": "services: {main: , api: {build: ./api}}"}, "docker-compose.yaml, services: main, api; a sandbox runs one image"),
        ({"instruction.md": "# canary"}, "instruction.md: the instruction is empty"),
        ({"instruction.md": None}, "instruction.md cannot be read: No such file or directory"),
        ({"instruction.md": " \n"}, "instruction.md: the instruction is empty"),
        ({"environment/Dockerfile": None}, "write "),
        ({"environment/Dockerfile": None, "environment/docker-compose.yaml": ""}, "services of Docker Compose are not started"),
        ({"tests/test.sh": None}, "tests/test.sh is missing: it runs the tests and writes the reward to /logs/verifier/reward.txt"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_used_says_why(tmp_path: Path, files: dict[str, Any], complaint: str) -> None:
    folder = folder_of(tmp_path, {**HARBOR, **files})
    with pytest.raises(TaskFileError) as refused:
        open_tasks(f"harbor:{folder}")
    assert complaint in str(refused.value)
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"task.yaml": "a: ["}, "task.yaml: not valid YAML"),
        ({"task.yaml": "[" * 5000}, "task.yaml: not valid YAML"),
        ({"task.yaml": "- a"}, "a task must be a mapping, not list"),
        ({"task.yaml": "author: me"}, "task.yaml, instruction: it must be a text, not None"),
        ({"task.yaml": "instruction: x\nparser_name: swebench"}, "task.yaml, parser_name: 'swebench' is not understood"),
        ({"docker-compose.yaml": "services: {a: {}, b: {}}"}, "docker-compose.yaml, services: a, b; a sandbox runs one image"),
        ({"docker-compose.yaml": "services: {a: {privileged: true}}"}, "services.a: privileged cannot be had in a sandbox"),
        ({"docker-compose.yaml": "services: {a: {gpus: all}}"}, "services.a: gpus cannot be had in a sandbox"),
        ({"docker-compose.yaml": "services: {a: {deploy: {resources: {reservations: {devices: [{driver: nvidia}]}}}}}"}, "services.a: deploy.resources.reservations.devices cannot be had"),
        ({"docker-compose.yaml": "services: {a: {build: {target: dev, args: {HTTP_PROXY: x, V: 3}}}}"}, "services.a.build: target, args.V: the image is built as the Dockerfile alone says"),
        ({"docker-compose.yaml": "services: {a: {build: {args: [V=3]}}}"}, "services.a.build: args.V: the image is built"),
        ({"docker-compose.yaml": "services: {a: {deploy: 3}}"}, "docker-compose.yaml: not understood"),
        ({"docker-compose.yaml": "services: {a: {build: client}}"}, "services.a.build: the image is built from the Dockerfile beside this file"),
        ({"docker-compose.yaml": "services: {}"}, "docker-compose.yaml: not understood"),
        ({"docker-compose.yaml": "services: {a: {working_dir: app}}"}, "environment.workdir: 'app' must be an absolute path"),
        ({"docker-compose.yaml": "x"}, "docker-compose.yaml: not understood"),
        ({"docker-compose.yaml": "services: {a: {build: ../other}}"}, "services.a.build: the image is built from the Dockerfile beside this file alone; put that of '../other' there"),
        ({"docker-compose.yaml": "services: {a: {build: {dockerfile: D2}}}"}, "services.a.build: the image is built from the Dockerfile beside this file alone"),
        ({"Dockerfile": "FROM x\nCOPY tests/data /app\n"}, "Dockerfile: 'COPY tests/data /app' puts tests or the solution before the agent"),
        ({"Dockerfile": "FROM x\nADD solution.sh /app\n"}, "Dockerfile: 'ADD solution.sh /app' puts tests or the solution"),
        ({"Dockerfile": None}, "the task has no image; write "),
        ({"run-tests.sh": None}, "run-tests.sh is missing: it runs the tests"),
    ],
)  # fmt: skip
def test_a_folder_of_the_older_form_says_so_too(tmp_path: Path, files: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TaskFileError) as refused:
        open_tasks(f"harbor:{folder_of(tmp_path, {**OLDER, **files})}")
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("path", "target", "refused"),
    [
        ("tests/test.sh", "../shared.sh", True),
        ("tests/test.sh", "run.sh", True),
        ("tests/data", "../../others", True),
        ("tests/data", "test.sh", False),
        ("tests/data", "/usr/share/dict", False),
        ("solution/solve.sh", "../shared.sh", True),
        ("environment/Dockerfile", "../Dockerfile", True),
        ("tests", "environment", True),
    ],
)
def test_links_that_a_sandbox_does_not_have_are_named(tmp_path: Path, path: str, target: str, refused: bool) -> None:
    folder = folder_of(tmp_path, {**HARBOR, "shared.sh": "", "Dockerfile": "FROM x\n", "tests/run.sh": ""})
    (folder / "environment" / "test.sh").touch()
    (folder / "solution").mkdir()
    link = folder / path
    if link.exists():
        link.rename(folder / "away")
    link.symlink_to(target)
    if not refused:
        read_task_folder(folder)
        return
    with pytest.raises(TaskFileError, match=f"{path} is a link to '{target}', which a sandbox does not have"):
        read_task_folder(folder)


def test_memory_is_compared_with_this_machine_where_the_engine_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, {**HARBOR, "task.toml": "[environment]\nmemory_mb = 4_000_000\ncpus = 1000\n"})
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/docker.sock")
    with pytest.raises(
        TaskFileError, match=r"4000000 MB are more than the .* of this machine; lower it, or name an engine"
    ):
        read_task_folder(folder)
    monkeypatch.setenv("DOCKER_HOST", "ssh://large")
    assert read_task_folder(folder).settings.environment.cpus == 1000
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONTEXT", "large")
    read_task_folder(folder)


def test_all_folders_that_cannot_be_used_are_named_at_once(tmp_path: Path) -> None:
    for number in range(8):
        made = folder_of(tmp_path / f"{number}", {**HARBOR, "instruction.md": "" if number else "Do it."})
        made.rename(tmp_path / f"task-{number}")
    with pytest.raises(TaskFileError) as refused:
        open_tasks(f"harbor:{tmp_path}")
    said = str(refused.value)
    assert "7 of 8 task folders cannot be used: mend them, take them out, or use those that `agentrl vet" in said
    assert said.count("the instruction is empty") == 5
    names = [task["name"] for task in tasks_of_folder(str(tmp_path), unusable_folder)]
    assert names == [f"task-{number}" for number in range(8)]


def test_tests_and_solution_are_no_part_of_what_the_older_forms_image_is_made_of(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path, {**OLDER, "tests/test_it.py": "", "solution.sh": "", "Dockerfile": "FROM x\nCOPY . /app\n"}
    )
    before, task = image_source(read_task_folder(folder)), list_tasks(f"harbor:{folder}")
    for changed in ("tests/test_it.py", "run-tests.sh", "solution.sh"):
        (folder / changed).write_text("other")
    found = read_task_folder(folder)
    assert image_source(found) == before
    assert list_tasks(f"harbor:{folder}") != task
    assert found.copies_all() == ["COPY . /app"]
    (folder / "app.py").write_text("other")
    assert image_source(found) != before


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {**HARBOR})
    os.symlink(b"\xff", bytes(folder / "link"))
    assert folder_digest(folder)
    os.mkfifo(folder / "pipe")
    with pytest.raises(TaskFileError, match="pipe is no file, folder or link"):
        folder_digest(folder)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match=r"there is no folder .*/nowhere; name one with task folders in it"):
        open_tasks(f"harbor:{tmp_path}/nowhere")
