"""Each program of benchmarks/ starts, measures at its smallest size, and says what it found."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from agentrl.workflows.harnesses import HARNESSES, installed_agents
from tests.components import missing
from tests.real_sandboxes import working_backend
from tests.real_sglang import sglang_config

ROOT = Path(__file__).parents[2]
LIMIT_S = 540
AGENT = "mini-swe-agent"


def check_agent() -> None:
    if not (installed_agents() / "bin" / HARNESSES[AGENT].program).exists():
        missing(f"{AGENT} is not installed in {installed_agents()}; scripts/install_agents.sh installs it")


def check_data(name: str) -> Callable[[], object]:
    """Return what skips a test where a file of shared/data beside the repository is not there."""
    return lambda: (
        (ROOT.parent / "shared/data" / name).exists() or missing(f"{name} is not in {ROOT.parent}/shared/data")
    )


NEEDS: dict[str, Callable[[], object]] = {
    "agent": check_agent,
    "bubblewrap": lambda: working_backend("bubblewrap"),
    "problems": check_data("gsm8k-train.jsonl"),
    "docker": lambda: working_backend("docker"),
    "humaneval": check_data("HumanEval.jsonl.gz"),
    "sglang": sglang_config,
}
"""What a benchmark may need beside the package: the function skips the test where it is absent."""


class Start(NamedTuple):
    """A start of a benchmark. `{scratch}` in its arguments is a directory of the test's own."""

    program: str
    arguments: str
    prints: str
    """A regular expression that what it prints has to match, with a figure."""
    needs: str = ""
    """Keys of NEEDS, with a blank between."""
    writes: str = ""
    """A file in the scratch directory."""


STARTS = [
    Start("async_vs_sync.py", "--steps 1 --rounds 1", r"S = \d+\.\d+, S_max = \d+\.\d+, ε = \d"),
    Start(
        "bench.py",
        "--only weight_update.py",
        r"\| pause of a weight update, .* \| \d+\.\d+ ms \| `python benchmarks/weight_update.py",
    ),
    Start("code_size.py", "", r"all +\d+ +\d+,\d+ +of \d+"),
    Start(
        "crash_test.py",
        "--disturbances 1 --tasks 8 --epochs 2 --no-comparison",
        r'"faults": \d+,\n(.*\n)* +"tasks": 16,\n(.*\n)* +"lost": 0,\n',
    ),
    Start("data_path.py", "--rounds 1 --generated 8", r"turn  proxy ms .*\n +1 +\d+\.\d\d +\d+\.\d\d\n"),
    Start(
        "embedded_engine.py",
        "--sequences 2 --prompt 8 --tokens 4 --rounds 1",
        r"2 replies +transformers +[\d,]+ tokens/s +1\.00 .*\n.* engine +[\d,]+ tokens/s +\d+\.\d\d .*\n.* server +[\d,]+ tokens/s",
    ),
    Start("fair_verdicts.py", "--verdicts 6", r"p99 +\d+\.\d +\d+\.\d +\d+\.\d", "bubblewrap"),
    Start("fuzz_proxy.py", "--minutes 0.05", r"[1-9]\d* requests: (.*\n)*longest stalls of the event loop, ms: \d"),
    Start("growth.py", "turns 1 2", r"turns +CPU ms\n +1 +\d+\.\d+\n +2 +\d+\.\d+\n +exponent +-?\d"),
    Start("growth.py", "episodes 2 4", r"episodes +kB an episode .*\n +2 +\d.*\n +4 +\d.*\n +exponent "),
    Start("growth.py", "steps 1 2", r"steps .*main MB.*\n +1 +\d.*\n +2 +\d.*\n +exponent "),
    Start(
        "logprob_memory.py",
        "--tokens 64 --vocabulary 1000 --width 64",
        r"plain +peak +\d+ MiB .*\nchunks +peak +\d+ MiB ",
    ),
    Start(
        "main_process_cost.py",
        "--tokens 64 --turns 2 --concurrent 16 --warm-up 8 --episodes 16 --rounds 1 --rows 3",
        r"64 tokens in 2 turns: \d+\.\d+ ms of CPU an episode (.*\n)*with the profiler: \d+\.\d+ ms",
    ),
    Start("model_kinds.py", "qwen3 --gradients", r"qwen3 +right to \d.*, gradient to \d.*\n1 accepted: qwen3\n"),
    Start(
        "objectives.py",
        "--steps 1 --only RLOO --plot {scratch}/plot.png",
        r"RLOO +\d\.\d+, \d\.\d+ +never +\d",
        writes="plot.png",
    ),
    Start(
        "paper/interruptible.py",
        "--steps 2 --rounds 1",
        r"\n +1 +[\d,]+/s +[\d,]+/s +[+-]\d+%  \d+\.\d\d s\ngain of interrupting: median [+-]\d",
    ),
    Start("paper/packing.py", "--episodes 2 --rounds 1 --budget 512", r"\n +512 +\d+ +\d+ +[\d,]+ +[\d,]+ +[+-]\d+%"),
    Start(
        "paper/scaling.py",
        "--servers 1 --steps 1 --simulated 1 2 --plot {scratch}/scaling.svg",
        r"\n +1 +\d+\.\d +\d+\.\d +\d+\.\d% +\d+\.\d%\n(.*\n)+ +2 +\d+\.\d +\d+%",
        writes="scaling.svg",
    ),
    Start(
        "paper/staleness.py",
        "--steps 2 --batch-size 16 --eta 1 --objectives naive --seeds 1 --held-out 16 --out {scratch}/rows.jsonl --plot {scratch}/plot.svg",
        r"\n +1  naive +0\.50  \d\.\d+ \(\d\.\d+-\d\.\d+\) +1 ",
        writes="plot.svg",
    ),
    Start("proxy_overhead.py", "--seconds 0.1", r"256  openai +\d+\.\d+ (.*\n)*.+\d kB\n(.*\n)* +openai +\d+\.\d+"),
    Start(
        "real_agents.py",
        f"--harnesses {AGENT} --layers 1 --group-size 2 --timeout-s 120 --keep {{scratch}}/run",
        rf"{AGENT} +2 +[1-9][\d,]* +[1-9].*\n\{{'sequences': \d",
        "agent docker",
        writes="run/store.sqlite",
    ),
    Start(
        "peers/grading.py",
        "--problems 1 --hostile 1 --rounds 1 --only agentrl/bubblewrap",
        r"agentrl/bubblewrap +\d+\.\d+ +0 of 10 +\d+\.\d +no +no",
        "bubblewrap humaneval",
    ),
    Start(
        "peers/proxy.py",
        "--seconds 0.2 --rounds 1 --only agentrl",
        r" 1  direct +\d.*\n +1  agentrl +\d(.*\n)* +256  agentrl +\d",
    ),
    Start(
        "peers/rollouts.py",
        "--episodes 4 --rounds 1 --delay-s 0.1 --only agentrl",
        r"\nagentrl +\d+\.\d +\d",
    ),
    Start(
        "rollout_workers.py",
        "--episodes 4 --concurrent 2 --rounds 1",
        r"workers = 0: \d+ episodes/s(.*\n)*rollout.workers = 2: \d+ episodes/s, \d+\.\d ms",
    ),
    Start(
        "routing.py",
        "--engine embedded --sessions 2 --turns 2",
        r"sticky: +\d+\.\d% of prompt tokens cached(.*\n)* random: +\d+\.\d%",
    ),
    Start(
        "routing.py",
        "--engine sglang --sessions 2 --turns 2",
        r"sticky: +\d+\.\d% of prompt tokens cached(.*\n)* random: +\d+\.\d%",
        "sglang",
    ),
    Start(
        "sandbox_throughput.py",
        "--seconds 0.2 --rounds 1",
        r"plain subprocess +\d+\.\d(.*\n)*pytest, bubblewrap: \d+ ms; a warm sandbox: \d+\.\d MB",
        "docker bubblewrap",
    ),
    Start("scale_simulation.py", "--servers 1 --plot {scratch}/scale.svg", r"\n1\t\d+\.\d\t\d\.\d", writes="scale.svg"),
    Start(
        "peers/training.py",
        "--model large --layers 1 --width 64 --vocabulary 500 --sequences 8 --group-size 8 --rounds 1 --side agentrl plain",
        r"agentrl +[\d,]+ tokens/s (.*\n)*.* plain +[\d,]+ tokens/s ",
        "problems",
    ),
    Start("peers/time_to_reward.py", "--rounds 1 --only agentrl trl --steps 2 --held-out 4", r"agentrl +median +\d+"),
    Start(
        "tree_training.py",
        "--rounds 1 --hidden 64 --layers 1 --episodes 1",
        r"as tau2 +by call +\d+ +[\d,]+ +\d+\.\d+ +\d(.*\n)*by call, in closed form: tokens \d+\.\d\d",
    ),
    Start(
        "time_to_goal.py",
        "--steps 1 --seeds 1 --mixed --settings data.order=difficulty",
        r"1 +\d+\.\d +1 .* as it is\n +1 +\d+\.\d +1 .* data.order=difficulty\n",
    ),
    Start("two_roles.py", "--steps 1", r"step +1  long +\d+\.\d tokens  short +\d+\.\d tokens"),
    Start(
        "waiting_environments.py",
        "--episodes 4 --steps 1 --wait-s 0.1",
        r"Waiting +4 episodes x 1 steps .*: \d+\.\d+ s in all.*\nBlocking +4 episodes x 1 steps .*: \d",
    ),
    Start("viewer.py", "--episodes 800", r"first answers of the page, all five: \d+\.\d+ s"),
    Start(
        "weight_update.py",
        "--engine embedded --mode retract --updates 1 --every-s 0.2 --replies 8 --tokens 50",
        r'"pause_ms_median": \d.*"lost": 0, "tokens_without_version": 0',
    ),
    Start(
        "weight_update.py",
        "--engine sglang --mode retract --updates 1 --every-s 0.2 --replies 8 --tokens 50",
        r'"pause_ms_median": \d.*"lost": 0, "tokens_without_version": 0',
        "sglang",
    ),
]
"""Every program with its smallest size."""


def name_of(start: Start) -> str:
    """The parameter's name: tests/conftest.py goes by it where tests share Docker or SGLang."""
    return "-".join([start.program.removesuffix(".py").replace("/", "-"), *start.needs.split()])


def run(words: list[str]) -> tuple[int, str, str]:
    """Run a program to its end, and return its exit code and what it printed. All that it started ends with it where it takes too long."""
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            printed, errors = process.communicate(timeout=LIMIT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, printed, errors


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("start", STARTS, ids=name_of)
def test_a_benchmark_measures_at_its_smallest_size(start: Start, tmp_path: Path) -> None:
    for need in start.needs.split():
        NEEDS[need]()
    arguments = start.arguments.format(scratch=tmp_path, root=ROOT).split()
    code, printed, errors = run([sys.executable, f"benchmarks/{start.program}", *arguments])
    assert code == 0, printed + errors
    assert re.search(start.prints, printed), printed + errors
    if start.writes:
        assert (tmp_path / start.writes).stat().st_size > 0


def test_every_benchmark_is_started_by_the_soak() -> None:
    programs = {str(p.relative_to(ROOT)) for p in ROOT.glob("benchmarks/**/*.py") if "\nif __name__" in p.read_text()}
    assert {f"benchmarks/{start.program}" for start in STARTS} == programs
    assert all(r"\d" in start.prints for start in STARTS)
