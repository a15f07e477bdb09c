"""A power cut at any write of a run, simulated: the run goes on, with every checkpoint that was committed, and an honest store."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.config.run import RunConfig, config_text
from agentrl.errors import AgentRLError
from agentrl.run.audit import audit
from agentrl.run.run_directory import appending, begin_store, read_metrics, write_config
from agentrl.run.run_lock import check_run_dir, prepare_run_dir
from agentrl.store.episodes import resumed_groups
from tests.components import missing
from tests.power_cut import Call, Disk, calls, strace, write
from tests.power_cut_program import TASKS, config, files

ROOT = Path(__file__).parents[2]
VARIANTS = {"nothing": 0.0, "everything": 1.0, "few": 0.2, "half": 0.5, "most": 0.8}
"""The share of what was not synced that a cut leaves on the disk."""


@dataclass(frozen=True)
class Recording:
    """What the program did to its disk."""

    folder: Path
    calls: list[Call]


@dataclass
class Promised:
    """What the program said had become durable."""

    created: bool = False
    step: int = 0
    batches: dict[int, list[int]] = field(default_factory=dict)
    """Groups by step, of all that was ever committed or was about to be."""
    whole: dict[int, list[dict[str, str]]] = field(default_factory=dict)
    """The files of each checkpoint, by step; of each time that it was made."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The program of `tests.power_cut_program` under strace."""
    if shutil.which("strace") is None:
        missing("a power cut is simulated from what strace records; it is not installed")
    folder = tmp_path_factory.mktemp("power-cut")
    (folder / "disk").mkdir()
    shape = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 8}
    Qwen3ForCausalLM(Qwen3Config(**shape, num_attention_heads=1, num_key_value_heads=1)).save_pretrained(
        folder / "model"
    )
    (folder / "model" / "tokenizer.json").write_text("{}")
    arguments = [str(folder / name) for name in ("disk/run", "model", "marks")]
    words = [*strace(folder / "trace"), sys.executable, "-m", "tests.power_cut_program", *arguments]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    if "PTRACE_TRACEME" in done.stderr:
        missing("strace may not trace here")
    assert done.returncode == 0, done.stderr
    return Recording(folder, list(calls(folder / "trace")))


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in shared memory where there is some: there syncing costs nothing."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None, prefix="agentrl-test-") as folder:
        yield Path(folder)


def cuts(recording: Recording, *, without: Callable[[str], bool] = lambda done: False) -> Iterator[tuple[Disk, str]]:
    """The disk after each thing that the program did to it, and what that was. Syncs that are `without` are left out."""
    disk = Disk(recording.folder / "disk", recording.folder / "marks")
    for call in recording.calls:
        if call.name in ("fsync", "fdatasync") and without(disk.file_of(call)):
            continue
        marks = len(disk.marks)
        done = disk.run(call)
        if done is not None or len(disk.marks) != marks:
            yield disk, done or "mark"


def promised(disk: Disk) -> Promised:
    """All that was promised up to now."""
    said = Promised()
    for line in disk.marks:
        mark: dict[str, Any] = json.loads(line)
        said.created |= "created" in mark
        if "committed" in mark:
            said.step = mark["committed"]
        if "written" in mark:
            said.whole.setdefault(mark["written"], []).append(mark["files"])
        said.batches |= dict(mark.get("batches", []))
    return said


def broken_promises(run_dir: Path, model: Path, said: Promised, everything: Promised, before: bool) -> list[str]:
    """What is wrong with a run after a power cut. It is resumed as `agentrl train` does it, short of its processes; `before`: and
    audited before that too."""
    settings = config(run_dir, model)
    if not said.created and not resumable(settings):
        # The run had not begun: then the directory must be good for a new one.
        check_run_dir(run_dir, resume=False)
        prepare_run_dir(run_dir)
        write_config(settings)
        with begin_store(run_dir, TASKS, "{}", resume=False):
            return audit(run_dir).violations
    wrong = audit(run_dir).violations if before else []
    RunConfig.model_validate_json((run_dir / "config.json").read_text())
    check_run_dir(run_dir, resume=True)
    prepare_run_dir(run_dir)
    with begin_store(run_dir, TASKS, config_text(settings), resume=True) as store:
        kept = store.kept_checkpoints()
        step = kept[-1][0] if kept else 0
        if step < said.step:
            wrong.append(f"checkpoint {said.step} was committed, and the newest is {step}")
        for number, path in kept:
            if not path.is_dir() or files(path) not in everything.whole[number]:
                wrong.append(f"checkpoint {number} is not what was written")
        unused = {group.id for group in store.read(resumed_groups)}
        for number in range(1, step + 1):
            if number in said.batches and unused & set(said.batches[number]):
                wrong.append(f"the groups of step {number} would be trained on again")
        with appending(run_dir / "metrics.jsonl"):
            pass
        if lost := set(range(1, step + 1)) - {row["step"] for row in read_metrics(run_dir)}:
            wrong.append(f"metrics.jsonl has no line of steps {lost}")
    left = sorted(path.name for path in (run_dir / "checkpoints").glob("*.partial"))
    return wrong + left + audit(run_dir).violations


def resumable(settings: RunConfig) -> bool:
    """Whether the directory holds a run, by the check of `agentrl train`."""
    try:
        check_run_dir(Path(settings.run_dir), resume=True)
    except AgentRLError:
        return False
    return True


def check(recording: Recording, disk: Disk, seed: int, share: float, folder: Path, everything: Promised) -> list[str]:
    """Cut the power now; what is wrong afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write(disk.after_a_cut(seed, share), folder)
    try:
        return broken_promises(folder / "run", recording.folder / "model", promised(disk), everything, seed % 4 == 0)
    except (AgentRLError, OSError, ValueError) as error:
        return [f"{type(error).__name__}: {error}"]


def the_end(recording: Recording) -> Promised:
    disk = Disk(recording.folder / "disk", recording.folder / "marks")
    for call in recording.calls:
        disk.run(call)
    return promised(disk)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_power_cut_at_any_write_costs_nothing_that_was_committed(recording: Recording, scratch: Path) -> None:
    everything = the_end(recording)
    wrong, points, writes = [], 0, 0
    for number, (disk, done) in enumerate(cuts(recording)):
        variants = [list(VARIANTS)[number % len(VARIANTS)], "half"]
        if done.startswith("write"):  # many and alike; what orders them is cut at each time
            writes += 1
            variants = variants[:1] if writes % 6 == 0 else []
        for name in variants:
            points += 1
            found = check(recording, disk, number, VARIANTS[name], scratch / "cut", everything)
            wrong += [f"after event {number} ({done}), {name} of the rest there: {text}" for text in found]
    assert points >= 1000
    assert wrong == []


def test_calls_that_overlap_are_read_as_they_took_effect(tmp_path: Path) -> None:
    """A descriptor is free for another thread before its close has ended; other calls take effect when they end."""

    def text(value: str) -> str:
        return '"' + "".join(f"\\x{byte:02x}" for byte in value.encode()) + '"'

    (tmp_path / "trace").write_text(
        f"""1 openat(AT_FDCWD, {text("/elsewhere")}, O_RDONLY) = 5
1 close(5 <unfinished ...>
2 openat(AT_FDCWD, {text("/disk/file")}, O_WRONLY|O_CREAT, 0600) = 5
1 <... close resumed>) = 0
2 write(5, {text("here")}, 4 <unfinished ...>
1 lseek(7, 0, SEEK_SET) = -1 EBADF (Bad file descriptor)
2 <... write resumed>) = 4
2 fsync(5 <unfinished ...>
1 lseek(7, 0, SEEK_SET) = -1 EBADF (Bad file descriptor)
2 <... fsync resumed>) = 0
2 close(5) = 0
1 openat(AT_FDCWD, {text("/disk")}, O_RDONLY|O_DIRECTORY) = 5
1 fsync(5) = 0
"""
    )
    disk = Disk(Path("/disk"), Path("/marks"))
    for call in calls(tmp_path / "trace"):
        disk.run(call)
    assert disk.after_a_cut(None, 0.0) == {"file": b"here"}


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "forgotten",
    [
        r"\.",
        r"run",
        r"run/config\.json\.partial",
        r"run/metrics\.jsonl",
        r"run/store\.sqlite-wal",
        r"run/store\.sqlite",
        r"run/checkpoints",
        r"run/checkpoints/step-\d+\.partial",
        r"run/checkpoints/step-\d+\.partial/optimizer",
        r"run/checkpoints/step-\d+\.partial/.*\.\w+",
    ],
)
def test_each_sync_that_is_forgotten_is_found(recording: Recording, scratch: Path, forgotten: str) -> None:
    """The simulation can fail: where a file or a folder is not synced, some cut breaks a promise."""
    everything = the_end(recording)
    for number, (disk, done) in enumerate(cuts(recording, without=lambda path: bool(re.fullmatch(forgotten, path)))):
        if done in ("mark", "write run/store.sqlite"):
            for share in (0.0, 0.5):
                if check(recording, disk, number, share, scratch / "cut", everything):
                    return
    pytest.fail(f"nothing depends on syncing {forgotten}")
