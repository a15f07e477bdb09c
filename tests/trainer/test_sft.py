"""A supervised warm start, as a user types it: it learns what the assistant says, and goes on where it was."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentrl.config import TrainerConfig, load_config
from agentrl.envs.calculator_env import TOOL, distinct_tasks
from agentrl.errors import StoreError, TaskFileError
from agentrl.models import NANO
from agentrl.proxy import ChatFormat
from agentrl.run.run_lock import lock_run
from agentrl.store.manifest import Manifest, write_manifest
from agentrl.trainer.conversations import training_sequences
from agentrl.trainer.model.ranks import Ranks
from agentrl.trainer.policy import Policy
from agentrl.trainer.sft import LIKELIHOOD, _checkpoint, fine_tune, newest_checkpoint, nll
from recipes.nano_model import demonstration

ROOT = Path(__file__).parents[2]


def demonstrations(count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {"messages": demonstration(task, rng, guess_share=0.0), "tools": [TOOL]}
        for task in distinct_tasks(count, seed=seed)
    ]


def sft(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentrl", "sft", *words], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_conversations_are_learned_and_an_interrupted_run_goes_on_exactly(tmp_path: Path) -> None:
    for name, count, seed in (("train", 56, 3), ("eval", 16, 4)):
        lines = "".join(json.dumps(one) + "\n" for one in demonstrations(count, seed))
        (tmp_path / f"{name}.jsonl").write_text(lines)
    words = ["--tasks", str(tmp_path / "train.jsonl"), "--model", "nano", "--eval.tasks", str(tmp_path / "eval.jsonl")]
    words += ["--rollout.batch_size=16", "--trainer.optimizer.lr=3e-4", "--trainer.optimizer.warmup_steps=0"]
    words += ["--trainer.checkpoint.every=2"]
    done = sft(*words, "--run_dir", str(tmp_path / "whole"), "--data.epochs=2")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout[done.stdout.index("{") :])
    assert summary["steps"] == 7, "two epochs of 56 conversations in batches of 16"
    assert summary["nll_held_out_after"] < 0.8 * summary["nll_held_out_before"]
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert rows[-1]["nll"] < rows[0]["nll"]

    parts = str(tmp_path / "parts")
    first = sft(*words, "--run_dir", parts, "--steps=4", "--data.epochs=2")
    assert f"ends the run before its last epoch; go on with --resume {parts} --steps N" in first.stdout
    again = sft("--resume", parts, "--steps=6")
    assert again.returncode == 0, again.stderr
    resumed, straight = (
        load_file(tmp_path / run / "checkpoints" / "step-000006" / "model.safetensors") for run in ("parts", "whole")
    )
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)
    assert "holds a run already" in sft(*words, "--run_dir", parts).stderr

    lock = lock_run(Path(parts))
    assert f"is in use by process {os.getpid()}" in sft("--resume", parts, "--steps=7").stderr
    os.close(lock)
    spread = sft("--resume", parts, "--steps=7", "--trainer.ranks=2", "--trainer.step_timeout_s=60")
    assert spread.returncode == 0, spread.stderr
    assert spread.stdout.count("step    7") == 1, "rank 0 alone says what it does"
    assert json.loads((tmp_path / "parts" / "summary.json").read_text())["steps"] == 7
    two, one = (
        load_file(tmp_path / run / "checkpoints" / "step-000007" / "model.safetensors") for run in ("parts", "whole")
    )
    assert all(float((two[name] - one[name]).abs().max()) < 1e-5 for name in one)


def test_the_loss_is_the_mean_of_what_the_assistant_says_and_its_gradient_the_cross_entropys(
    nano_format: ChatFormat,
) -> None:
    sequences = [s for one in demonstrations(3, 9) for s in training_sequences(one, nano_format, "here")]
    assert len(sequences) == 3
    for s in sequences:
        said = nano_format.decode(s.token_ids[s.loss_mask].tolist())
        assert said.startswith("<think>\n\n</think>\n\n<tool_call>"), "as the template ends a conversation"
        assert said.count("<|im_end|>") == 2
        assert "<tool_response>" not in said
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-9, "warmup_steps": 0, "max_grad_norm": 1e9}, **LIKELIHOOD))
    expected = nll(policy, sequences)
    plain = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32)
    total = torch.zeros(())
    for s in sequences:
        logits = plain(input_ids=s.token_ids[None], use_cache=False).logits[0, :-1]
        total = total + torch.nn.functional.cross_entropy(
            logits[s.loss_mask[1:]], s.token_ids[1:][s.loss_mask[1:]], reduction="sum"
        )
    (total / sum(int(s.loss_mask.sum()) for s in sequences)).backward()  # type: ignore[no-untyped-call]
    norm = torch.cat([p.grad.flatten() for p in plain.parameters()]).norm()
    result = policy.step(sequences)
    assert result.loss == pytest.approx(expected, rel=1e-5)
    assert result.grad_norm == pytest.approx(float(norm), rel=1e-4)


def test_a_run_learns_its_steps_and_refuses_at_the_start_what_is_no_conversation(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps(one) + "\n" for one in demonstrations(2, 3)]
    (tmp_path / "tasks.jsonl").write_text("".join(lines))
    settings = {
        "rollout.batch_size": "2",
        "rollout.group_size": "1",
        "data.order": "in_order",
        "trainer.offload": "true",
    }
    config = load_config((), settings, run_dir=str(tmp_path / "run"), model={"path": str(NANO)})
    config = config.model_copy(update={"tasks": str(tmp_path / "tasks.jsonl"), "steps": 1})
    (tmp_path / "run").mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        assert fine_tune(config)["steps"] == 1
        assert "%|" not in capfd.readouterr().err, "a progress bar of transformers'"
        written = sorted((tmp_path / "run").rglob("*"))
        assert [path for path in written if path.stat().st_mode & 0o077] == [], "others can read what the run wrote"
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    (tmp_path / "tasks.jsonl").write_text("".join(lines) + '\n{"messages": [{"role": "model", "content": "4"}]}\n')
    with pytest.raises(TaskFileError, match=r"tasks\.jsonl, line 4 is no conversation: Invalid 'messages\.0\.role'"):
        fine_tune(config.model_copy(update={"steps": 2}), resume=True)
    (tmp_path / "run" / "store.sqlite").touch()
    with pytest.raises(StoreError, match="holds a run with rewards; go on with it by: agentrl train --resume"):
        fine_tune(config, resume=True)


def test_ctrl_c_finishes_its_step_and_the_run_goes_on_until_nothing_is_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(one) + "\n" for one in demonstrations(2, 3)))
    settings = {"rollout.batch_size": "2", "rollout.group_size": "1", "steps": "2", "eval.tasks": str(tasks)}
    config = load_config(
        (), {**settings, "tasks": str(tasks)}, run_dir=str(tmp_path / "run"), model={"path": str(NANO)}
    )
    step = Policy.step

    def interrupted(policy: Policy, batch: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return step(policy, batch)

    monkeypatch.setattr(Policy, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fine_tune(config)
    assert f"go on with: agentrl sft --resume {config.run_dir}" in capfd.readouterr().out
    monkeypatch.undo()
    summary = fine_tune(config, resume=True)
    said = capfd.readouterr().out
    assert ("step    1" in said, "step    2" in said) == (False, True), (
        "the step that was interrupted is not taken again"
    )
    assert summary["nll_held_out_before"] > summary["nll_held_out_after"]
    assert fine_tune(config.model_copy(update={"seed": 9}), resume=True) == summary
    assert "nothing is left to train, no key changes" in capfd.readouterr().out
    assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == config.seed


def test_the_newest_checkpoint_is_the_one_of_the_largest_step(tmp_path: Path) -> None:
    """Past step 999,999, too, where names have a digit more; and nothing else in the folder is one."""
    folder = tmp_path / "checkpoints"
    for name in ("step-999998", "step-999999", "notes"):
        (folder / name).mkdir(parents=True)
    policy = SimpleNamespace(version=1_000_000, ranks=Ranks(), save=lambda path, _: path.mkdir())
    config = load_config((), {"trainer.checkpoint.keep": "2"}, run_dir=str(tmp_path))
    path = _checkpoint(cast(Policy, policy), config)
    assert sorted(path.name for path in folder.iterdir()) == ["notes", "step-1000000", "step-999999"]
    for whole in (folder / "step-999999", path):
        write_manifest(whole, Manifest(int(whole.name.removeprefix("step-")), 0))
    assert newest_checkpoint(tmp_path) == path
