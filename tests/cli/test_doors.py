"""Every command, given anything bad, ends with 1 or 2 and one line that says what to do; no traceback, and no work begun."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli import main as cli
from agentrl.config import load_config
from agentrl.errors import ConfigError, TrainerError
from agentrl.models import NANO
from agentrl.store.store import Store
from agentrl.trainer.__main__ import main as trainer_main
from agentrl.trainer.sft import main as sft_main
from tests.components import missing
from tests.store.test_store import fill

WORKFLOW = "from agentrl import Episode\nasync def run(episode: Episode) -> float:\n    return 1.0\n"
NOT_UTF8 = b'{"question": "\xff\xfe"}\n'


@pytest.fixture(autouse=True)
def no_blocking_call_in_the_event_loop() -> Iterator[None]:
    """Files are read before anything runs, where nothing else waits."""
    return


@pytest.fixture(autouse=True)
def agentrl_is_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.system.exit_code.COMMAND", "agentrl")


class Doors:
    """A folder with what commands take, sound until a row damages it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workflow = self.put("workflow.py", WORKFLOW)
        self.tasks = self.put("tasks.jsonl", '{"question": "1 + 1"}\n')
        self.run_dir = folder / "run"

    def put(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def train(self, *more: object, workflow: Path | None = None, **options: object) -> list[str]:
        given = {"tasks": self.tasks, "model": NANO, "run_dir": self.run_dir, **options}
        words = ["train", str(workflow or self.workflow)]
        for name, value in given.items():
            words += [f"--{name}", str(value)]
        return [*words, *map(str, more)]

    def sft(self, *more: object, **options: object) -> list[str]:
        train = self.train(*more, **options)
        return ["sft", *train[2:]]

    def eval(self, *more: object, workflow: Path | None = None, **options: object) -> list[str]:
        return ["eval", *self.train(*more, workflow=workflow, **options)[1:]]

    def model(self, **files: bytes | None) -> Path:
        """A copy of the nano model in which some files have other content, or are gone."""
        copy = self.folder / "model"
        shutil.copytree(NANO, copy)
        for name, content in files.items():
            path = copy / name.replace("__", ".")
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)
        return copy

    def made_run(self, *, config: bytes | None = None, store: Callable[[bytes], bytes] | None = None) -> Path:
        """A run that has been made, whose configuration or store is damaged."""
        self.run_dir.mkdir()
        values = {"workflow": str(self.workflow), "tasks": str(self.tasks), "run_dir": str(self.run_dir)}
        made = load_config((), {"model.path": str(NANO)}, **values).model_dump_json().encode()
        self.put("run/config.json", made if config is None else config)
        with Store(self.run_dir / "store.sqlite") as filled:
            fill(filled)
        path = self.run_dir / "store.sqlite"
        if store is not None:
            path.write_bytes(store(path.read_bytes()))
        return self.run_dir


def garbled(content: bytes) -> bytes:
    return content[:4096] + b"\x5a" * (len(content) - 4096)


def tokenizer_less(doors: Doors) -> Path:
    names = [name for name in os.listdir(NANO) if "tokenizer" in name or name in ("vocab.json", "merges.txt")]
    return doors.model(**dict.fromkeys((name.replace(".", "__") for name in names), None))


def listening(doors: Doors) -> int:
    listener = socket.create_server(("127.0.0.1", 0))
    doors.listener = listener  # type: ignore[attr-defined]
    return int(listener.getsockname()[1])


Row = tuple[str, Callable[[Doors], list[Any]], str]
"""A name, the words of the command, and what its line says."""

ROWS: list[Row] = [
    ("an unknown command", lambda d: ["trian"], 'Unknown command "trian". Did you mean "train"? Available commands: train, sft, eval, serve, view, runs, episodes, audit, ... See agentrl --help.'),
    ("a stray word", lambda d: d.train("again.py"), "Unused Tokens: ['again.py']. See agentrl train --help"),
    ("an unknown key", lambda d: d.train("--rollout.batchsize=8"), "Unknown option: --rollout.batchsize. Did you mean --rollout.batch-size? See agentrl train --help."),
    ("a key with nothing", lambda d: d.train("--steps"), "--steps"),
    ("no name of a key", lambda d: d.train("--=3"), "nknown option"),
    ("an option misspelt", lambda d: ["audit", d.folder, "--jsn"], "Unknown option: --jsn. Did you mean --json?"),
    ("a switch with a word behind it", lambda d: d.train("--trainer.offload", "maybe"), 'trainer.offload = "maybe": Input should be'),
    ("a number that is none", lambda d: d.train("--steps", "many"), 'steps = "many": Input should be a valid integer'),
    ("a key that is like none", lambda d: d.train("--config", d.put("c.toml", "xyzzy = 3")), "c.toml:1: xyzzy = 3: unknown key; `agentrl config` shows all keys"),
    ("an audit of no run", lambda d: ["audit"], "requires an argument"),
    ("a workflow for a run that goes on", lambda d: ["train", "w.py", "--resume", d.folder], "--resume takes the configuration of the run: leave out WORKFLOW"),
    ("a file for sft without its option", lambda d: ["sft", d.put("conv.jsonl", '{"x": 1}'), "--model", NANO], 'holds no "messages"'),
    ("a run directory for sft that is a file", lambda d: d.sft(run_dir=d.tasks), "cannot be written"),
    ("an endpoint without a scheme", lambda d: d.eval("--base-url", "localhost:1"), "write it with its scheme, as in http://localhost:1"),
    ("an endpoint that does not answer", lambda d: d.eval("--base-url", "http://127.0.0.1:1/v1"), "http://127.0.0.1:1/v1 does not answer"),
    ("an engine that is not installed", lambda d: d.train("--engine.python", sys.executable, engine="sglang"), "needs SGLang in `engine.python`"),
    ("an engine of no Python", lambda d: d.eval("--engine.python", "/none", engine="sglang"), "cannot be run"),
    ("a port in use", lambda d: d.eval("--proxy.port", listening(d)), "cannot be listened on"),
    ("a run without its episode", lambda d: d.train(workflow=d.put("w.py", "async def run(): ...")), "cannot be called with an episode alone"),
    ("a line of a workflow that fails", lambda d: d.train(workflow=d.put("w.py", "\n1/0")), "w.py:2 cannot be imported"),
    ("a run as model", lambda d: d.eval(model=d.made_run()), "is the directory of a run; its checkpoints are in"),
    ("tasks that are a program", lambda d: d.train(tasks=d.workflow), "is Python code; use python:"),
    ("one task to hold out of", lambda d: d.train("--data.eval_share=0.5"), "there is one task alone"),
    ("a value for a section", lambda d: d.train("--rollout=3"), "Unknown option: --rollout. "),
    ("a key below a value", lambda d: d.train("--seed=1", "--seed.x=3"), "Unknown option: --seed.x. "),
    ("a huge value", lambda d: d.train(f"--steps={'x' * 10_000}"), "steps = "),
    ("an engine that there is not", lambda d: d.train("--engine", "vllm"), "engine.kind = \"vllm\": Input should be 'embedded' or 'sglang'"),
    ("no workflow", lambda d: ["train", "--tasks", d.tasks, "--model", "nano"], "`workflow` is not set"),
    ("no tasks", lambda d: ["train", d.workflow, "--model", "nano"], "`tasks` is not set"),
    ("no model", lambda d: ["serve"], "`model.path` is not set; give it, or set it in a file"),
    ("a workflow that is not there", lambda d: d.train(workflow=d.folder / "none.py"), "none.py does not exist"),
    ("a workflow in a name too long", lambda d: d.train(workflow=Path("x" * 300)), "File name too long"),
    ("a workflow that is a folder", lambda d: d.train(workflow=d.folder), "is a directory; name the Python file in it"),
    ("a syntax error", lambda d: d.train(workflow=d.put("w.py", "def run(:")), "cannot be imported: SyntaxError"),
    ("an import error", lambda d: d.eval(workflow=d.put("w.py", "import nothing_there")), "No module named 'nothing_there'"),
    ("an exit at import", lambda d: d.train(workflow=d.put("w.py", "import sys; sys.exit('b\\nye')")), "SystemExit: b ye"),
    ("a workflow not in UTF-8", lambda d: d.train(workflow=d.put("w.py", b"x = '\xff'")), "cannot be imported"),
    ("a workflow with no run", lambda d: d.eval(workflow=d.put("w.py", "")), "defines no run"),
    ("a run that is not async", lambda d: d.train(workflow=d.put("w.py", "def run(e): ...")), "write `async def run(episode)`"),
    ("a task that is a list", lambda d: d.train(tasks=d.put("t.jsonl", "{}\n\n[1]\n")), "line 3: a task must be a JSON object, not list: in a file, each task is a line of its own"),
    ("a file of no tasks", lambda d: d.train(tasks=d.put("t.jsonl", "\n")), "holds no tasks"),
    ("a folder as model", lambda d: d.train(model=d.folder), "holds no config.json"),
    ("tasks that are not there", lambda d: d.train(tasks="none.jsonl"), "none.jsonl: No such file"),
    ("tasks that are a folder", lambda d: d.eval(tasks=d.folder), "is a folder; use harbor:"),
    ("tasks not in UTF-8", lambda d: d.train(tasks=d.put("t.jsonl", NOT_UTF8)), "line 1: not valid JSON: invalid unicode code point"),
    ("tasks for sft not in UTF-8", lambda d: d.sft(tasks=d.put("t.jsonl", NOT_UTF8)), "line 1: not valid JSON: invalid unicode code point"),
    ("tasks that are not JSON", lambda d: d.eval(tasks=d.put("t.jsonl", "{}\n{")), "line 2: not valid JSON"),
    ("tasks too deep", lambda d: d.train(tasks=d.put("t.jsonl", "[" * 100_000)), "line 1: not valid JSON"),
    ("a task for sft that is none", lambda d: d.sft(), 'holds no "messages"'),
    ("a task program that fails", lambda d: d.train(tasks=f"python:{d.put('t.py', '1/0')}:x"), "ZeroDivisionError"),
    ("an object that is not there", lambda d: d.train(tasks="python:json:nope"), "AttributeError"),
    ("a module that is not there", lambda d: d.train(tasks="python:nope:x"), "No module named 'nope'"),
    ("held-out tasks not in UTF-8", lambda d: d.train("--eval.tasks", d.put("t.jsonl", NOT_UTF8)), "line 1: not valid JSON: invalid unicode code point"),
    ("a configuration not there", lambda d: d.train("--config", "none.toml"), "cannot read the configuration none.toml"),
    ("a configuration that is a folder", lambda d: ["serve", "--config", d.folder], "Is a directory"),
    ("a configuration not in UTF-8", lambda d: ["serve", "--config", d.put("c.toml", b'a = "\xff"')], "'utf-8' codec can't decode"),
    ("a configuration not TOML", lambda d: d.sft("--config", d.put("c.toml", "steps ==")), "c.toml: Invalid value (at line 1"),
    ("a model that is not there", lambda d: d.train(model=d.folder / "none"), "is not a directory"),
    ("a model that is a file", lambda d: d.eval(model=d.tasks), "is not a directory"),
    ("a model with an empty config", lambda d: d.train(model=d.model(config__json=b"")), "config.json is not JSON"),
    ("a model with a list as config", lambda d: d.train(model=d.model(config__json=b"[]")), "holds no JSON object"),
    ("a model of no kind", lambda d: d.train(model=d.model(config__json=b"{}")), "cannot be loaded"),
    ("a model with no tokenizer", lambda d: d.train(model=tokenizer_less(d)), "holds no tokenizer"),
    ("a broken tokenizer", lambda d: d.eval(model=d.model(tokenizer__json=b"{")), "cannot be loaded"),
    ("no weights", lambda d: ["serve", "--model", d.model(model__safetensors=None)], "holds no weights"),
    ("cut weights", lambda d: d.train(model=d.model(model__safetensors=b"\x08" + 7 * b"\0" + b'{"a')), "is damaged"),
    ("empty weights", lambda d: d.sft(model=d.model(model__safetensors=b"")), "is damaged"),
    ("weights short of a byte",
     lambda d: d.train(model=d.model(model__safetensors=(NANO / "model.safetensors").read_bytes()[:-1])), "is damaged"),
    ("a renderer that is not there", lambda d: d.eval("--model.renderer", "nope"), "`model.renderer` = 'nope'"),
    ("a run directory that is a file", lambda d: d.train(run_dir=d.tasks), "cannot be written"),
    ("a run directory below a file", lambda d: d.train(run_dir=d.tasks / "run"), "cannot be written: Not a directory"),
    ("a run directory in /proc", lambda d: d.train(run_dir="/proc/run"), "the run directory /proc/run cannot be written"),
    ("a run directory for sft in /proc", lambda d: d.sft(run_dir="/proc/run"), "cannot be written"),
    ("a full disk", lambda d: d.train(run_dir="/work-full"), "cannot be written: No space left on device; make room"),
    ("a run that is there", lambda d: d.train(run_dir=d.made_run()), "holds a run already; go on with --resume "),
    ("nothing to resume", lambda d: ["train", "--resume", d.folder], "holds no run to resume"),
    ("a file to resume", lambda d: ["train", "--resume", d.tasks], "holds no run to resume"),
    ("nothing for sft to resume", lambda d: ["sft", "--resume", d.folder / "none"], "holds no run to resume"),
    ("a run that goes on elsewhere", lambda d: ["train", "--resume", d.made_run(), "--run_dir=x"], "stays where it is"),
    ("a run with an empty config", lambda d: ["train", "--resume", d.made_run(config=b"")], "config.json cannot be read"),
    ("a run with a config not in UTF-8", lambda d: ["train", "--resume", d.made_run(config=b"\xff")], "config.json cannot be read"),
    ("a run with a list as config", lambda d: ["sft", "--resume", d.made_run(config=b"[]")], "config.json cannot be read"),
    ("a run with a wrong config", lambda d: ["train", "--resume", d.made_run(config=b'{"x": 1}')], "x = 1: unknown key"),
    ("a replay with an empty config", lambda d: ["replay", d.made_run(config=b""), 1], "config.json cannot be read"),
    ("a resumed store of garbage", lambda d: ["train", "--resume", d.made_run(store=lambda _: b"x" * 8192)], "store.sqlite"),
    ("a resumed store with damage", lambda d: ["train", "--resume", d.made_run(store=garbled)], "store"),
    ("an audit of nothing", lambda d: ["audit", d.folder], "holds no run"),
    ("an audit of garbage", lambda d: ["audit", d.made_run(store=lambda _: b"x" * 8192)], "store.sqlite cannot be used as a store"),
    ("an audit with a key", lambda d: ["audit", d.folder, "--steps=3"], "Unknown option: --steps. See"),
    ("a replay of nothing", lambda d: ["replay", d.folder, 1], "holds no run"),
    ("a replay of no episode", lambda d: ["replay", d.made_run(), 99], "holds no episode 99"),
    ("a replay of a huge number", lambda d: ["replay", d.made_run(), 10**30], "cannot be read"),
    ("a replay of a word", lambda d: ["replay", d.folder, "x"], "into int"),
    ("an --out that is a run", lambda d: d.eval("--out", d.made_run()), "holds something else than this evaluation"),
    ("an --out with a damaged store", lambda d: d.eval("--out", d.made_run(store=lambda _: b"x" * 8192)), "store.sqlite"),
    ("init where something is", lambda d: ["init", d.folder], "exists already; choose another name"),
    ("serve on a port in use", lambda d: ["serve", "--model", "nano", "--proxy.port", listening(d)], "already in use"),
    ("serve with a key that it does not use", lambda d: ["serve", "--rollout.max-tokens=24"], "Unknown option: --rollout.max-tokens. See"),
    ("serve into a run", lambda d: ["serve", "--model", "nano", "--out", d.made_run()], "holds something else than this service"),
    ("serve on no port", lambda d: ["serve", "--model", "nano", "--proxy.port", 70000], "proxy.port = 70000"),
    ("serve on nobody's address", lambda d: ["serve", "--model", "nano", "--proxy.host", "192.0.2.1"], "192.0.2.1"),
]  # fmt: skip


@pytest.fixture
def full_disk() -> Iterator[None]:
    """A disk of one page at /work-full."""
    path = Path("/work-full")
    path.mkdir(exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(path)], capture_output=True).returncode:
        path.rmdir()
        missing("a small disk can be made by root only (mount -t tmpfs)")
    yield
    subprocess.run(["umount", str(path)], check=True)
    path.rmdir()


@pytest.mark.parametrize(
    ("words", "line"),
    [pytest.param(*rest, id=name, marks=[pytest.mark.soak] * (name == "a full disk")) for name, *rest in ROWS],
)
def test_bad_input_ends_in_one_line(
    words: Callable[[Doors], list[Any]],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    if "full disk" in request.node.callspec.id:
        request.getfixturevalue("full_disk")
    doors = Doors(tmp_path / "doors")
    typed = [str(word) for word in words(doors)]
    there_before = doors.run_dir.exists()
    code = cli.main(typed)
    if listener := vars(doors).get("listener"):
        listener.close()
    said = capsys.readouterr().err
    assert code in (1, 2), said
    (shown,) = [one for one in said.splitlines() if not one.startswith("chosen for this machine")]
    assert shown.startswith("agentrl: ")
    assert line in shown
    assert len(shown) < 2100
    assert "fault of agentrl" not in shown
    if typed[:1] in (["train"], ["sft"]):
        assert doors.run_dir.exists() == there_before, "work started before the input was checked"


def ends_with(error: BaseException, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    def command(*_: object) -> int:
        raise error

    monkeypatch.setattr("agentrl.cli.setup.doctor", command)
    return cli.main(["doctor", *words])


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("no"), 2, "agentrl: no"),
        (TrainerError("a\nb"), 1, "agentrl: a b"),
        (KeyboardInterrupt(), 130, "agentrl: interrupted"),
        (OSError(28, "No space left on device", "/x"), 1, "agentrl: /x: No space left on device; make room"),
        (OSError("an old one"), 1, "agentrl: an old one"),
        (BaseExceptionGroup("g", [BaseExceptionGroup("h", [KeyError(1), TrainerError("t")])]), 1, "agentrl: t"),
        (BaseExceptionGroup("g", [KeyboardInterrupt()]), 130, "agentrl: interrupted"),
    ],
)
def test_known_errors_end_in_their_own_line(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends_with(error, monkeypatch) == code
    assert capsys.readouterr().err == line + "\n"


def test_a_fault_of_agentrl_keeps_its_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    error = ExceptionGroup("g", [ValueError("bad\n" * 1000 + "\ud800")])
    assert ends_with(error, monkeypatch) == 1
    (shown,) = capsys.readouterr().err.splitlines()
    (file,) = tmp_path.glob("agentrl-traceback-*.txt")
    assert shown.startswith("agentrl: ValueError: bad bad ")
    assert shown.endswith(f"This is a fault of agentrl; please report it with the traceback in {file}")
    assert "test_doors.py" in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    with pytest.raises(ExceptionGroup):
        ends_with(error, monkeypatch, "--debug")
    monkeypatch.setenv("AGENTRL_DEBUG", "1")
    with pytest.raises(ExceptionGroup):
        ends_with(error, monkeypatch)


@pytest.mark.parametrize(
    ("part", "words", "line"),
    [
        (trainer_main, [], "agentrl train starts the trainer by itself"),
        (sft_main, [], "agentrl sft starts its ranks by itself"),
        (sft_main, ["/nowhere"], "/nowhere holds no run"),
    ],
)
def test_a_part_that_is_started_by_hand_says_what_starts_it(
    part: Callable[[], None], words: list[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["python -m", *words])
    with pytest.raises(SystemExit, match=line) as end:
        part()
    assert isinstance(end.value.code, str), "which Python prints, and ends with 1"


@pytest.mark.soak
def test_output_that_nobody_reads_and_characters_that_a_terminal_lacks_end_nothing(tmp_path: Path) -> None:
    run_dir = Doors(tmp_path).made_run()
    command = f"{sys.executable} -m agentrl audit {run_dir} | true; exit ${{PIPESTATUS[0]}}"
    unread = subprocess.run(["bash", "-c", f"sleep 0.1; {command}"], capture_output=True, text=True, timeout=60)
    assert unread.returncode in (0, 1, 141)
    assert unread.stderr == ""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"n": 1}\n')
    words = [
        sys.executable,
        "-m",
        "agentrl",
        "train",
        "w\N{GREEK SMALL LETTER ETA}.py",
        f"--tasks={tasks}",
        "--model=nano",
    ]
    narrow = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ascii_only = subprocess.run(words, capture_output=True, text=True, timeout=60, env=narrow, cwd=tmp_path)
    assert ascii_only.returncode == 2
    assert ascii_only.stderr == "agentrl: the workflow file w\\u03b7.py does not exist\n"


def test_an_environment_variable_that_is_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    doors = Doors(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "many")
    assert cli.main(doors.sft()) == 2
    assert "the environment variable WORLD_SIZE = 'many' is not a number; unset it" in capsys.readouterr().err
