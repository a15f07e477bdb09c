"""The command line as a user types it. `test_doors.py` gives it bad input."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Literal

import pytest

from agentrl import open_run
from agentrl.cli.configuration import run_configuration
from agentrl.cli.main import COMMANDS, command_line, main
from agentrl.config import RunConfig, config_fields, load_config
from agentrl.envs.calculator_env import distinct_tasks
from agentrl.run.run_directory import write_config
from agentrl.system.exit_code import as_typed_here

ROOT = Path(__file__).parents[2]


def agentrl(*words: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentrl", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT)


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_eval_serves_the_model_and_prints_the_mean_reward(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(task) + "\n" for task in distinct_tasks(16, seed=5)))
    out = tmp_path / "kept"
    words = ["eval", "workflows/calculator.py", "--tasks", str(tasks), "--model", "nano", "--out", str(out)]
    result = agentrl(*words, "--eval.samples", "2", "--json")
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout)
    assert (shown["tasks"], shown["episodes"], shown["failed"]) == (16, 32, 0)
    assert 0 < shown["mean_reward"] <= 1
    assert shown["mean_reward_95"][0] < shown["mean_reward"] < shown["mean_reward_95"][1]
    rewards = [episode.reward for episode in open_run(out).episodes()]
    assert len(rewards) == 32
    assert shown["mean_reward"] == pytest.approx(sum(rewards) / 32)
    assert shown["pass_at"]["1"]["mean"] == pytest.approx(sum(reward >= 1 for reward in rewards) / 32)
    assert shown["pass_at"]["1"]["mean"] <= shown["pass_at"]["2"]["mean"]
    assert len(shown["per_task"]) == 16

    with closing(sqlite3.connect(out / "store.sqlite")) as store, store:
        store.execute("DELETE FROM calls WHERE episode > 25")
        store.execute("DELETE FROM episodes WHERE id > 25")
    again = agentrl(*words, "--eval.samples", "2", "--per-task")
    assert "going on after 25 episodes" in again.stderr
    assert len(open_run(out).episodes()) == 32
    figures = again.stdout.splitlines()
    assert figures[-1].startswith("episodes"), "figures are the last thing on the screen"
    assert any(f" -m agentrl episodes {out} lists them, " in line for line in figures)
    assert "pass@2" in again.stdout
    assert "tasks, the hardest first" in again.stdout
    other = agentrl(*words, "--seed", "3")
    assert other.returncode == 2
    assert "holds something else than this evaluation: seed 0 is not 3; name another directory" in other.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_messages_name_a_command_that_works_here(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.system.exit_code.COMMAND", "python -m agentrl")
    assert as_typed_here(f"go on with: agentrl {command} x") == f"go on with: python -m agentrl {command} x"


SLEEPS = "import asyncio\nasync def run(episode):\n    print('begun', flush=True)\n    await asyncio.sleep(3600)\n"


def test_an_interrupted_evaluation_says_where_it_is_and_how_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(SLEEPS)
    (tmp_path / "tasks.jsonl").write_text('{"n": 1}\n')
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as endpoint:
        Thread(target=endpoint.serve_forever, daemon=True).start()
        command = [sys.executable, "-m", "agentrl", "eval", "w.py", "--tasks", "tasks.jsonl", "--model", "m"]
        command += ["--out", "kept", "--base-url", f"http://127.0.0.1:{endpoint.server_port}/v1"]
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        endpoint.shutdown()
    kept = tmp_path / "kept"
    assert process.returncode == 130
    told = f"interrupted: 0 of 1 episodes are in {kept}; the same command with --out {kept} goes on"
    assert said.splitlines() == ["the tasks are 1 of tasks.jsonl", told]


def test_a_run_that_goes_on_names_its_changed_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(load_config((), {}, workflow="w.py", tasks="t.jsonl", model="m", run_dir=str(tmp_path), steps=5))
    run_configuration({"steps": "7", "rollout.group_size": "4"}, (), None, resume=tmp_path, run_dir="")
    assert capsys.readouterr().err == "changed keys: steps 5 → 7, rollout.group_size 8 → 4\n"


@pytest.mark.slow
def test_init_writes_a_project_that_passes_its_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "sums")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Its tests: python -m pytest", "pytest is installed here"
    made = " ".join(sorted(path.name for path in (tmp_path / "sums").iterdir()))
    assert made == "environment.py environment_test.py run.toml tasks.py workflow.py"
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path / "sums", capture_output=True, text=True, timeout=100
    )
    assert tests.returncode == 0, tests.stdout
    assert main(["init", str(tmp_path / "sums")]) == 2
    assert "exists already; choose another name" in capsys.readouterr().err


def test_init_says_how_to_come_by_what_its_tests_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.cli.setup.find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    assert (tmp_path / "my-agent" / "run.toml").is_file()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Its tests: python -m pip install pytest && python -m pytest"


def printed_config(capsys: pytest.CaptureFixture[str], *words: str) -> RunConfig:
    """The configuration that `agentrl config` prints for these words."""
    assert main(["config", *words]) == 0
    return load_config((), None, **tomllib.loads(capsys.readouterr().out))


@pytest.mark.parametrize("columns", [80, 120])
def test_help_shows_every_key_with_its_type_default_and_documentation(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["train", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    words = " ".join(" ".join(lines).replace("│", " ").split())
    for key in config_fields():
        assert f"--{key.name.replace('_', '-')}" in words
        assert key.documentation.replace("`", "").split()[0] in words, f"{key.name} has no documentation"
    assert "--rollout.max-staleness INT" in words
    assert "synchronous training. [default: 2]" in words
    assert "[choices: retract, in_place, abort]" in words
    assert "reinforce, m2po, likelihood] [default:" in words
    assert "Of ppo: c: where the advantage is negative" in words
    assert "Default for gspo: 0.0003. [default: 0.2]" in words


def test_an_evaluation_takes_every_key_and_shows_those_that_it_uses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--rollout.max-tokens" in shown
    assert "--trainer." not in shown
    assert "--steps" not in shown
    assert main(["eval", "no-such-workflow.py", "--trainer.optimizer.lr", "1e-6", "--steps", "3"]) == 2
    assert "unknown" not in capsys.readouterr().err.casefold()


def test_help_and_version_come_at_once() -> None:
    """Wall time says more about a loaded machine than about us: what is slow to import is not imported."""
    script = """
import sys
from agentrl.cli.main import main
assert main(sys.argv[1:]) == 0
print([name for name in ("torch", "transformers", "openai", "aiohttp", "agentrl.run.train") if name in sys.modules])
"""
    for words in (["--help"], ["--version"], ["train", "--help"]):
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr


@pytest.mark.slow
def test_each_command_has_help_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for command, (_, line) in COMMANDS.items():
        assert f" {command} " in shown
        assert main([command, "--help"]) == 0
        own = " ".join(capsys.readouterr().out.split())
        assert own.startswith(f"Usage: agentrl {command} ")
        assert line.split(".")[0].split(",")[0] in own


def test_engine_and_model_are_short_for_their_keys_and_files_add_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text("steps = 7\n[engine]\nservers = 2\n")
    second.write_text("[engine]\nservers = 3\n")
    words = ["w.py", "--engine", "sglang", "--config", str(first), "--config", str(second)]
    config = printed_config(capsys, *words, "--engine.flags.tp-size", "2", "--model", "1234")
    assert (config.workflow, config.steps, config.model.path) == ("w.py", 7, "1234")
    assert (config.engine.kind, config.engine.servers, config.engine.flags) == ("sglang", 3, {"tp-size": 2})


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("--rollout.batch_size 16", "rollout.batch_size", 16),
        ("--rollout.batch-size=16", "rollout.batch_size", 16),
        ("--steps 3 --steps 4", "steps", 4),
        ("--rollout.no-drop-uniform-groups", "rollout.drop_uniform_groups", False),
        ("--rollout.drop-uniform-groups false", "rollout.drop_uniform_groups", False),
        ("--trainer.offload --steps 3", "trainer.offload", True),
        ("--engine.urls http://a --engine.urls http://b", "engine.urls", ["http://a", "http://b"]),
        ("--engine.urls http://a", "engine.urls", ["http://a"]),
        ('--engine.urls ["http://a"]', "engine.urls", ["http://a"]),
        ("--model.renderer-options.enable_thinking false", "model.renderer_options", {"enable_thinking": False}),
        ("--run-dir 2026", "run_dir", "2026"),
        ("--eval.tasks 7", "eval.tasks", "7"),
        ("--trainer.optimizer.lr 2e-5", "trainer.optimizer.lr", 2e-5),
        ("--trainer.objective gspo", "trainer.objective.kind", "gspo"),
        ("--trainer.objective.clip-low 0.1 --trainer.objective cispo", "trainer.objective.clip_low", 0.1),
        ("--trainer.kl.kind loss --trainer.kl.coef 0.1", "trainer.kl.coef", 0.1),
        ("--trainer.lora.rank 8 --trainer.lora.roles side", "trainer.lora.roles", ["side"]),
    ],
)
def test_a_value_is_read_as_its_key_says(
    words: str, key: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    found: object = printed_config(capsys, *words.split())
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


def test_config_prints_every_key_with_its_documentation_and_reads_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "--trainer.optimizer.lr", "3e-4"]) == 0
    shown = capsys.readouterr().out
    for key in config_fields():
        name = key.name.rpartition(".")[2]
        assert re.search(rf"^(# )?{name} =", shown, re.MULTILINE), f"{key.name} is not there"
        assert f"# {key.documentation.splitlines()[0]}" in shown
    assert "lr = 0.0003" in shown
    file = tmp_path / "run.toml"
    file.write_text(shown)
    assert load_config(file).trainer.optimizer == load_config((), {"trainer.optimizer.lr": 3e-4}).trainer.optimizer
    assert main(["config", "--config", str(file)]) == 0
    assert tomllib.loads(capsys.readouterr().out) == tomllib.loads(shown)


def test_config_masks_the_credentials_of_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--engine.urls", "http://me:s3cr3t@one:1", "--engine.urls", "http://two:2"]
    words += [
        "--trainer.teacher.url",
        "https://s3cr3t@three/v1",
        "--model.renderer-options.source",
        "http://me:s3cr3t@four",
    ]
    assert main(["config", *words]) == 0
    shown = capsys.readouterr().out
    assert "s3cr3t" not in shown
    read = load_config((), None, **tomllib.loads(shown))
    assert read.engine.urls == ["http://***@one:1", "http://two:2"]
    assert read.trainer.teacher is not None
    assert read.trainer.teacher.url == "https://***@three/v1"


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_keys(shell: Literal["bash", "zsh", "fish"]) -> None:
    script = command_line().generate_completion(shell=shell)
    for word in ("train", "doctor", "rollout.batch-size", "per-task"):
        assert word in script
