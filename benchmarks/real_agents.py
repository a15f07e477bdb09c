"""Coding agents as they are, with their whole prompts, on a model that is trained here: episodes, and a training step on them.

    python benchmarks/real_agents.py [--harnesses claude-code codex opencode gemini mini-swe-agent] [--layers 2] [--group-size 2]

Needs `scripts/install_agents.sh` and a Docker engine with the image of `scripts/agents_image.sh`. The model is the nano model with its first layers alone and a context of 131,072 tokens,
which it was never trained for: it says nothing of sense, and each agent ends as it does with such a model. So that the step has a gradient,
eight of a task's nine hidden tests pass by chance; the ninth is the task's own. Printed, for each agent: its episodes, tokens of the longest
prompt, replies, conversations that are trained on, and seconds; then the step: trajectories, tokens, seconds, memory, and the mean
difference between the engine's logprobs and the trainer's.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from agentrl.models import NANO
from agentrl.run.run_directory import read_metrics
from agentrl.store.store import Store
from agentrl.workflows.harnesses import HARNESSES

ROOT = Path(__file__).parents[1]
CONTEXT = 131_072
MAX_REPLY_TOKENS = 1024
"""Of an agent that leaves it open. With its top_p, the end of a reply may be among what is never drawn from an untrained model."""
MAX_RUN_S = 3600
CHANCE = "import os\nimport pytest\n\n@pytest.mark.parametrize('n', range(8))\ndef test_chance(n):\n    assert os.urandom(1)[0] % 2\n"
OWN = "from calc import add\n\ndef test_add():\n    assert add(2, 3) == 5\n"


def write_long_nano(directory: Path, layers: int) -> Path:
    """Write the nano model with its first `layers` and a long context; its directory."""
    directory.mkdir()
    for file in NANO.iterdir():
        shutil.copy(file, directory)
    config = json.loads((NANO / "config.json").read_text())
    kinds = config["layer_types"][:layers]
    config |= {"max_position_embeddings": CONTEXT, "num_hidden_layers": layers, "layer_types": kinds}
    (directory / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((NANO / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**tokenizer, "model_max_length": CONTEXT}))
    tensors = load_file(NANO / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if _layer(name) < layers}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _layer(name: str) -> int:
    numbers = [part for part in name.split(".") if part.isdecimal()]
    return int(numbers[0]) if numbers else -1


def task(harness: str, timeout_s: float) -> dict[str, Any]:
    """A task whose reward differs from episode to episode."""
    return {
        "harness": harness,
        "name": harness,
        "repository": {"files": {"calc.py": "def add(a, b):\n    return a - b\n"}},
        "prompt": "add() in calc.py is wrong. Mend it.",
        "tests": {"files": {"test_add.py": OWN, "test_chance.py": CHANCE}},
        "partial": True,
        "limits": {"timeout_s": timeout_s},
    }


def train(run_dir: Path, model: Path, tasks: Path, groups: int, options: argparse.Namespace) -> None:
    """Take one training step on a group of each task."""
    keys: dict[str, object] = {
        "model": model,
        "tasks": tasks,
        "run-dir": run_dir,
        "steps": 1,
        "data.order": "in_order",
        "rollout.batch-size": groups * options.group_size,
        "rollout.group-size": options.group_size,
        "rollout.max-concurrent": 2,
        "rollout.max-tokens": MAX_REPLY_TOKENS,
        "rollout.max-staleness": 0,
        "rollout.drop-uniform-groups": "false",
        "rollout.episode-timeout-s": options.timeout_s + 120,
        "engine.flags.max-total-tokens": 2 * CONTEXT,
        "sandbox.image": "agentrl/agents",
        "trainer.optimizer.lr": 1e-3,
        "trainer.minibatches": 1,
        "trainer.step-timeout-s": MAX_RUN_S,
    }
    command = [sys.executable, "-m", "agentrl", "train", str(ROOT / "workflows" / "harness.py")]
    for name, value in keys.items():
        command += [f"--{name}", str(value)]
    subprocess.run(command, check=True, timeout=MAX_RUN_S)


def report(run_dir: Path, names: list[str]) -> None:
    """Print what was recorded: a line for each agent, and the step."""
    with Store(run_dir / "store.sqlite", read_only=True) as store:
        rows = store.read(
            lambda db: db.execute(
                "SELECT e.id, g.task, e.tokens, e.duration_s FROM episodes e JOIN groups g ON g.id = e.group_id"
                " WHERE e.reason = 'finished' ORDER BY e.id"
            ).fetchall()
        )
        ended = [(names[number], store.record(episode), tokens, took) for episode, number, tokens, took in rows]
    print(
        f"{'agent':15} {'episodes':>8} {'longest prompt':>15} {'replies':>8} {'roots':>6} {'tokens':>7} {'seconds':>8}"
    )
    for name in names:
        own = [(one.turns, tokens, took) for known, one, tokens, took in ended if known == name]
        turns = [turn for some, _, _ in own for turn in some]
        longest = max((len(turn.token_ids()) - len(turn.output_ids) for turn in turns), default=0)
        roots = sum(turn.parent is None and not turn.left_out for turn in turns)
        tokens, seconds = sum(one[1] for one in own), sum(one[2] for one in own)
        print(f"{name:15} {len(own):8} {longest:15,} {len(turns):8} {roots:6} {tokens:7,} {seconds:8.0f}")
    step = read_metrics(run_dir)[-1]
    keys = ("sequences", "computed_tokens", "trained_tokens", "train_s", "grad_norm")
    print(
        {
            key: step[key]
            for key in (*keys, "logprob_mismatch_mean_abs", "logprob_mismatch_max_abs", "logprob_mismatch_tokens")
        }
    )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--harnesses", nargs="+", default=list(HARNESSES), choices=list(HARNESSES))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--group-size", type=int, default=2)
    parser.add_argument("--timeout-s", type=float, default=600)
    parser.add_argument("--keep", type=Path, help="where the run is kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        model = write_long_nano(scratch / "long_nano", options.layers)
        tasks = scratch / "tasks.jsonl"
        tasks.write_text("".join(json.dumps(task(name, options.timeout_s)) + "\n" for name in options.harnesses))
        run_dir = options.keep or scratch / "run"
        begun = time.monotonic()
        train(run_dir, model, tasks, len(options.harnesses), options)
        report(run_dir, options.harnesses)
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        print(f"{time.monotonic() - begun:.0f} s; the largest process had {most / 2**20:.1f} GiB")


if __name__ == "__main__":
    main()
