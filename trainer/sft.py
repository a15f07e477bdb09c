"""`agentrl sft`: a supervised warm start from conversations, on the trainer's own policy, packs and checkpoints.

A conversation is a task as `agentrl.trainer.conversations` reads it. What the assistant says in it is trained on. Which conversations a step gets follows from its
number alone, so an interrupted run goes on exactly where it was.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers.utils.logging import disable_progress_bar

from agentrl.config import RunConfig
from agentrl.config.machine import cpu_threads
from agentrl.errors import AgentRLError, CheckpointError, ConfigError, TrainerError
from agentrl.proxy import ChatFormat
from agentrl.rollout.check_start import with_model, with_roles
from agentrl.rollout.open_runner import chat_format_of
from agentrl.run.run_directory import (
    appending,
    checkpoint_directory,
    quarantine,
    read_config,
    read_summary,
    whole_checkpoints,
    write_config,
)
from agentrl.run.run_lock import check_run_dir, hold_run_dir
from agentrl.store.manifest import check_files
from agentrl.system.files import write_whole
from agentrl.tasks.conversation_rows import CONVERSATION
from agentrl.tasks.curriculum import Tasks, open_run_tasks
from agentrl.trainer.conversations import training_sequences
from agentrl.trainer.model.ranks import Ranks, join_ranks
from agentrl.trainer.packing import TrainingSequence, pack_sequences
from agentrl.trainer.policy import Policy

LIKELIHOOD = {"objective": "likelihood", "importance": "none", "kl": "none", "advantage": "dr_grpo"}
"""What makes a training step supervised learning."""
NLL_BEFORE = "nll_before.json"


def fine_tune(config: RunConfig, *, resume: bool = False) -> dict[str, Any]:
    """Train `config.model` on the conversations in `config.tasks`.

    A step is `rollout.batch_size` conversations; the run ends after `steps`, or after `data.epochs`.

    Args:
        config: The run.
        resume: Whether to go on with a run that was interrupted.

    Returns:
        The summary, which names the checkpoint.

    Raises:
        TaskFileError: A task is no conversation.
        StoreError: The run directory holds a run already, or one with rewards is to go on.
        ConfigError: The run that is to go on began with another model, or its order of tasks goes by rewards, or roles are to have adapters.
        TrainerError: One of several ranks ended.
        KeyboardInterrupt: It was interrupted. The step that had begun is finished, and a checkpoint of it is there.
    """
    if config.data.order == "difficulty":
        raise ConfigError(
            f'`data.order` = "{config.data.order}" draws tasks by what came of episodes, and supervised training has none; use '
            '`data.order` = "shuffled" or "in_order", with `data.sources` to mix tasks'
        )
    if config.trainer.roles:
        raise ConfigError(
            f"`trainer.lora.roles` = {config.trainer.roles} are roles of episodes, and conversations have none; leave it out: one adapter is "
            "trained"
        )
    run_dir = Path(config.run_dir)
    interrupted, before = threading.Event(), signal.getsignal(signal.SIGINT)

    def interrupt(number: int, _: object) -> None:
        interrupted.set()
        signal.signal(number, before)  # the next one ends the run at once
        print(f"interrupted; go on with: agentrl sft --resume {run_dir}", flush=True)

    check_run_dir(run_dir, resume=resume, begins_with="metrics.jsonl")
    config = with_roles(with_model(config), training=True)
    with ExitStack() as stack:
        lock = stack.enter_context(hold_run_dir(config, resume=resume, begins_with="metrics.jsonl"))
        # Checkpoints are for their user alone, whoever writes their files; ranks inherit it.
        stack.callback(os.umask, os.umask(0o077))
        stack.callback(_leave_ranks)
        stack.callback(signal.signal, signal.SIGINT, before)
        signal.signal(signal.SIGINT, interrupt)
        if resume and (summary := read_summary(run_dir)) and (ended := summary["steps"]) >= config.steps:
            print(f"nothing is left to train, no key changes: run {run_dir} ended with step {ended} of {config.steps}")
            return summary
        write_config(config)
        if config.trainer.ranks == 1:
            _fine_tune(config, join_ranks(config.trainer.step_timeout_s, offload=config.trainer.offload), interrupted)
        else:
            elastic = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={config.trainer.ranks}"]
            command = [sys.executable, *elastic, "-m", "agentrl.trainer.sft", str(run_dir)]
            if code := subprocess.run(command, pass_fds=[lock], check=False).returncode:  # noqa: S603
                raise TrainerError(f"a rank of agentrl sft ended with exit code {code}; what it said is above")
    return dict(json.loads((run_dir / "summary.json").read_text()))


def _leave_ranks() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _fine_tune(config: RunConfig, ranks: Ranks, interrupted: threading.Event) -> None:
    """Train, on every rank. Rank 0 alone writes and prints.

    Raises:
        KeyboardInterrupt: The run was interrupted; the step that had begun is finished.
    """
    run_dir, first = Path(config.run_dir), ranks.rank == 0
    tasks, held_out = open_run_tasks(config, None, CONVERSATION)
    chat_format = chat_format_of(config)
    held_out_sequences = [
        sequence
        for i, task in enumerate(held_out)
        for sequence in training_sequences(task, chat_format, f"held-out conversation {i}")
    ]
    _batch(tasks, 0, config, chat_format)  # what is no conversation is refused before the model is loaded
    disable_progress_bar()
    torch.set_num_threads(cpu_threads(config, training=True))
    torch.manual_seed(config.seed)
    trainer = config.trainer.model_validate({**config.trainer.model_dump(), **LIKELIHOOD})
    policy = Policy(Path(config.model.path), trainer, ranks)
    last = ranks.broadcast_object(newest_checkpoint(run_dir) if first else None)
    if last is not None:
        policy.load(last)
    if first:
        print(f"run {run_dir}: step {policy.version} of {config.steps}", flush=True)
    if last is None:
        before = nll(policy, held_out_sequences)
        if first:
            write_whole(run_dir / NLL_BEFORE, json.dumps(before))
    batch = _batch(tasks, policy.version, config, chat_format)
    # The file says that there is a run, so what cannot be learned is refused before. Of other ranks the lines go nowhere.
    with appending(run_dir / "metrics.jsonl") if first else Path(os.devnull).open("w") as log:
        while batch and not interrupted.is_set():
            started = time.perf_counter()
            result = policy.step(batch)
            tokens, step_s = max(1.0, result.stats.tokens), time.perf_counter() - started
            row = {
                "step": policy.version,
                "nll": result.loss,
                "grad_norm": result.grad_norm,
                "lr": result.lr,
                "tokens": tokens,
                "computed_tokens": result.computed_tokens,
                "skipped_optimizer_steps": result.skipped,
                "step_s": step_s,
            }
            print(json.dumps(row), file=log, flush=True)
            if first:
                speed = f"{tokens / step_s:,.0f} trained tokens/s"
                print(f"step {policy.version:4d}  nll {result.loss:.4f}  {speed}", flush=True)
            if policy.version % config.trainer.checkpoint.every == 0:
                last = _checkpoint(policy, config)
            batch = _batch(tasks, policy.version, config, chat_format)
    more = config.data.epochs and tasks.task_of_group(policy.version * config.rollout.batch_size)
    if first and more and not interrupted.is_set():
        print(f"`steps` = {config.steps} ends the run before its last epoch; go on with --resume {run_dir} --steps N")
    if last is None or last.name != checkpoint_directory(run_dir, policy.version).name:
        last = _checkpoint(policy, config)
    if interrupted.is_set():
        raise KeyboardInterrupt
    after = nll(policy, held_out_sequences)
    if first:
        summary = {
            "steps": policy.version,
            "nll_held_out_before": json.loads((run_dir / NLL_BEFORE).read_text()),
            "nll_held_out_after": after,
            "checkpoint": str(last),
        }
        write_whole(run_dir / "summary.json", json.dumps(summary, indent=2) + "\n")


@torch.no_grad()
def nll(policy: Policy, sequences: Sequence[TrainingSequence]) -> float | None:
    """Return the mean negative log-likelihood of a trained token.

    Args:
        policy: The policy.
        sequences: What it is over.

    Returns:
        Nats; None for no sequences.
    """
    packs = pack_sequences(sequences, policy.config.tokens_per_pack)
    if not packs:
        return None
    own = (pack.to(policy.device) for pack in policy.ranks.shard(packs))
    (total,) = policy.ranks.all_reduce([sum(float(policy.logprobs(pack).sum()) for pack in own)])
    return -total / sum(pack.trained_tokens for pack in packs)


def newest_checkpoint(run_dir: Path) -> Path | None:
    """Return the newest whole checkpoint of a run.

    What is damaged is set aside, and said; the steps that it had are taken again.

    Args:
        run_dir: The run.

    Returns:
        The checkpoint; None where there is none.
    """
    for path in reversed(whole_checkpoints(run_dir)):
        try:
            check_files(path)
        except CheckpointError as damaged:
            kept_at = quarantine(run_dir, path)
            print(f"a checkpoint is damaged: {damaged}; what is left of it is in {kept_at}", flush=True)
        else:
            return path
    return None


def _batch(tasks: Tasks, step: int, config: RunConfig, chat_format: ChatFormat) -> list[TrainingSequence]:
    """Return what the step that follows `step` learns; [] after the last step or the last epoch."""
    size = config.rollout.batch_size if step < config.steps else 0
    found = [tasks.task_of_group(step * size + i) for i in range(size)]
    return [
        sequence
        for one in found
        if one
        for sequence in training_sequences(one.usable(), chat_format, f"conversation {one.index} of epoch {one.epoch}")
    ]


def _checkpoint(policy: Policy, config: RunConfig) -> Path:
    run_dir = Path(config.run_dir)
    path = checkpoint_directory(run_dir, policy.version)
    policy.save(path, Path(config.model.path))
    for old in whole_checkpoints(run_dir)[: -config.trainer.checkpoint.keep] if policy.ranks.rank == 0 else []:
        shutil.rmtree(old, ignore_errors=True)
    return path


def main() -> None:
    """Run one of several ranks: `torch.distributed.run ... -m agentrl.trainer.sft RUN_DIR`."""
    if len(sys.argv) != 2:
        sys.exit("agentrl: agentrl sft starts its ranks by itself: python -m agentrl.trainer.sft RUN_DIR")
    try:
        config = read_config(Path(sys.argv[1]))
        ranks = join_ranks(config.trainer.step_timeout_s)
    except AgentRLError as error:
        sys.exit(f"agentrl sft: {error}")
    try:
        _fine_tune(config, ranks, threading.Event())
    except AgentRLError as error:
        sys.exit(f"agentrl sft: {error}" if ranks.rank == 0 else 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
