"""The trainer process: `python -m agentrl.trainer RUN_DIR WEIGHTS_DIR`, started by `agentrl train`.

It reads one JSON command a line from standard input and answers each with one line on standard output; it ends when its
standard input closes. Episodes it reads from the run's store, weights it publishes into WEIGHTS_DIR.

    {"op": "load", "checkpoint": PATH | null}      -> {"version": 0, "weights": PATH}
    {"op": "step", "groups": [ids]}                -> {"version": 1, "weights": PATH, "metrics": {...}, "saving": false}
    {"op": "save", "directory": PATH}              -> {}, while it is written
    {"op": "saved"}                                -> {}, when it is
    {"op": "join_weight_group", "address": ..., ...} -> {}
    {"op": "weight_buckets"}                       -> {"buckets": [{"names", "dtypes", "shapes"}]}
    {"op": "send_bucket", "index": 0}              -> {}
    any of them, failed                            -> {"error": TEXT}
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from agentrl.config import RunConfig, TrainerConfig
from agentrl.credit import turn_earnings
from agentrl.errors import AgentRLError
from agentrl.rollout.store import Store, StoredEpisode
from agentrl.run_directory import read_config
from agentrl.trainer.advantages import mask_turns, overlong_penalty, turn_advantages
from agentrl.trainer.broadcast import Bucket, WeightGroup, buckets_of
from agentrl.trainer.packing import TrainingSequence
from agentrl.trainer.policy import Policy
from agentrl.trainer.ranks import Ranks, gathered, join_ranks
from agentrl.trainer.teacher import with_teacher
from agentrl.trajectory import TokenRecord, Trajectory

BUCKET_BYTES = 512 * 2**20
"""How much of the weights is broadcast at a time: the memory that sender and receivers need beside the weights."""
PUBLISHED_VERSIONS_KEPT = 8
"""Weights that stay published, so that stale tokens can be re-scored under the weights that sampled them."""


def training_sequences(episodes: Sequence[StoredEpisode], config: TrainerConfig) -> list[TrainingSequence]:
    """The trajectories of whole groups, each token with its advantage. Paths without a trained token are left out."""
    sequences: list[TrainingSequence] = []
    for _, members in groupby(episodes, key=lambda episode: episode.group_id):
        group = list(members)
        rewards = [e.reward - overlong_penalty(longest_reply(e.record), config) for e in group]
        if config.advantage == "gae":
            worths = [turn_earnings(e.record, reward) for e, reward in zip(group, rewards, strict=True)]
        else:
            worths = turn_advantages([e.record for e in group], rewards, config)
        for episode, worth in zip(group, worths, strict=True):
            mask_turns(episode.record, config)
            paths = episode.record.trajectories(worth)
            sequences += [_training_sequence(path) for path in paths if any(path.loss_mask)]
    return sequences


def _training_sequence(path: Trajectory) -> TrainingSequence:
    rewards = [0.0] * len(path)
    last = None
    for t, trained in enumerate(path.loss_mask):
        last = t if trained else last
        # What a turn earned counts at its end, or, where it is not trained on, at what led to it.
        if (t + 1 == len(path) or path.turns[t + 1] != path.turns[t]) and last is not None:
            rewards[last] += path.values[t]
    return TrainingSequence(
        token_ids=torch.tensor(path.token_ids),
        loss_mask=torch.tensor(path.loss_mask),
        behaviour_logprobs=torch.tensor(path.logprobs),
        versions=torch.tensor(path.versions),
        temperatures=torch.tensor(path.temperatures),
        advantages=torch.tensor(path.values),
        rewards=torch.tensor(rewards),
        turns=torch.tensor(path.turns),
    )


def with_gradient(sequences: Sequence[TrainingSequence], config: TrainerConfig) -> list[TrainingSequence]:
    """The sequences that move the policy: where advantages are all there is, not those whose advantages are all zero."""
    if (
        config.kl != "none"
        or config.teacher_url
        or config.entropy_coef
        or config.advantage not in ("grpo", "dr_grpo", "rloo")
    ):
        return list(sequences)
    return [s for s in sequences if bool((s.advantages[s.loss_mask] != 0).any())]


def distance_to_teacher(sequences: Sequence[TrainingSequence]) -> dict[str, float]:
    """Mean of log b − log teacher over the trained tokens: an estimate of KL(behaviour‖teacher)."""
    gaps = [
        (s.behaviour_logprobs - s.teacher_logprobs)[s.loss_mask] for s in sequences if s.teacher_logprobs is not None
    ]
    return {"kl_teacher": float(torch.cat(gaps).mean())} if gaps else {}


def longest_reply(record: TokenRecord) -> int:
    """Tokens of the longest reply of an episode."""
    return max((len(turn.output_ids) for turn in record.turns), default=0)


class TrainerProcess:
    """The commands."""

    def __init__(self, run_dir: Path, weights_dir: Path, ranks: Ranks | None = None) -> None:
        self._config = RunConfig.model_validate_json((run_dir / "config.json").read_text())
        self._weights_dir = weights_dir
        self._published: dict[int, Path] = {}
        self._weight_group: WeightGroup | None = None
        self._buckets: list[Bucket] = []
        torch.set_num_threads(self._config.trainer.threads)
        torch.manual_seed(self._config.seed)
        self._store = Store(run_dir / "store.sqlite")
        self._ranks = ranks or Ranks()
        self._policy = Policy(Path(self._config.model.path), self._config.trainer, self._ranks)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def load(self, checkpoint: str | None) -> dict[str, Any]:
        """Go on from a checkpoint, or from the model as it is."""
        if checkpoint is not None:
            self._policy.load(Path(checkpoint))
        return self._publish()

    def step(self, groups: list[int]) -> dict[str, Any]:
        """Train on some groups and publish the new weights."""
        started = time.perf_counter()
        episodes = self._store.episodes(groups)
        sequences = training_sequences(episodes, self._config.trainer)
        # Weights of an earlier life are gone, and their versions may have been given to others since.
        own = [e for e in episodes if e.life == self._store.life and not e.replayed_tokens]
        current = training_sequences(own, self._config.trainer)
        version = self._policy.version
        metrics = staleness(sequences, version)
        compared = self._policy.mismatch(current[: self._config.trainer.mismatch_sequences], self._published)
        if compared is not None:
            metrics |= {f"logprob_mismatch_{name}": value for name, value in vars(compared).items()}
        moving = with_gradient(sequences, self._config.trainer)
        if url := self._config.trainer.teacher_url:
            timeout_s = self._config.trainer.step_timeout_s
            moving = self._ranks.same(with_teacher(moving, url, timeout_s) if self._ranks.rank == 0 else [])
            metrics |= distance_to_teacher(moving)
        result = self._policy.step(moving)
        tokens = max(1.0, result.stats.tokens)
        metrics |= {
            "loss": result.loss,
            "grad_norm": result.grad_norm,
            "skipped_optimizer_steps": result.skipped,
            "lr": result.lr,
            "sequences": len(sequences),
            "trained_tokens": sum(int(s.loss_mask.sum()) for s in sequences),
            "clipped_share": result.stats.clipped / tokens,
            "capped_share": result.stats.capped / tokens,
            "weight_mean": result.stats.weight / tokens,
            "kl_step": result.stats.kl / tokens,
            "entropy": result.stats.entropy / tokens,
            "computed_tokens": result.computed_tokens,
        }
        metrics |= result.critic
        if self._config.trainer.kl != "none":
            metrics["kl_reference"] = result.stats.kl_reference / tokens
        if len(result.log_weights):
            quantiles = torch.quantile(result.log_weights.float(), torch.tensor([0.01, 0.5, 0.99])).exp().tolist()
            metrics |= dict(zip(("weight_p01", "weight_p50", "weight_p99"), quantiles, strict=True))
        reply = self._publish()
        metrics["train_s"] = time.perf_counter() - started
        return {**reply, "metrics": metrics, "saving": self._writing is not None and not self._writing.done()}

    def save(self, directory: str) -> dict[str, Any]:
        """Begin to write a checkpoint of the policy as it is now, once the one before is written."""
        self.saved()
        write = self._policy.staged(Path(directory), Path(self._config.model.path))
        self._writing = self._writer.submit(write)
        return {}

    def saved(self) -> dict[str, Any]:
        """Wait until the checkpoint is written. Raises what kept it from being so."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()
        return {}

    def join_weight_group(self, **where: Any) -> dict[str, Any]:
        """Join the process group over which weights go to the servers; a group of before is left. Of several ranks the first does."""
        if self._ranks.rank:
            return {}
        if self._weight_group is not None:
            self._weight_group.close()
        self._weight_group = WeightGroup(**where)
        return {}

    def weight_buckets(self) -> dict[str, Any]:
        """Make the buckets of the current weights ready to send."""
        parameters = gathered(self._policy.model.named_parameters(), self._ranks, lambda tensor: tensor)
        self._buckets = buckets_of(parameters.items(), BUCKET_BYTES)
        return {"buckets": [bucket.manifest() for bucket in self._buckets]}

    def send_bucket(self, index: int) -> dict[str, Any]:
        """Broadcast one bucket."""
        if self._ranks.rank == 0:
            assert self._weight_group is not None
            self._weight_group.send(self._buckets[index])
        return {}

    def _publish(self) -> dict[str, Any]:
        path = self._published[self._policy.version] = self._policy.publish(self._weights_dir)
        for version in sorted(self._published)[:-PUBLISHED_VERSIONS_KEPT]:
            old = self._published.pop(version)
            if self._ranks.rank == 0:
                shutil.rmtree(old, ignore_errors=True)
        return {"version": self._policy.version, "weights": str(path)}


def staleness(sequences: Sequence[TrainingSequence], version: int) -> dict[str, float]:
    """Mean and maximum of (trainer's version − token's version) over the trained tokens.

    A token of steps that a crash undid has a later version than the trainer, and counts as fresh.
    """
    lags = [(version - s.versions[s.loss_mask]).clamp(min=0) for s in sequences]
    lag = torch.cat(lags).float() if lags else torch.zeros(1)
    return {"staleness_mean": float(lag.mean()), "staleness_max": float(lag.max())}


def main() -> None:
    """Answer commands until standard input closes."""
    if len(sys.argv) != 3:
        sys.exit("agentrl: agentrl train starts the trainer by itself: python -m agentrl.trainer RUN_DIR WEIGHTS_DIR")
    run_dir, weights_dir = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        config = read_config(run_dir)
    except AgentRLError as error:
        sys.exit(f"agentrl: {error}")
    # Whatever a library prints must not mix with the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    ranks = join_ranks(config.trainer.step_timeout_s, offload=config.trainer.offload)
    process: TrainerProcess | None = None
    while line := ranks.same(sys.stdin.readline() if ranks.rank == 0 else ""):
        command = json.loads(line)
        operation = command.pop("op")
        try:
            if process is None:
                process = TrainerProcess(run_dir, weights_dir, ranks)
            reply = getattr(process, operation)(**command)
        except Exception as error:
            traceback.print_exc()
            # What all ranks see alike, rank 0 reports. A rank that fails alone ends, and torch elastic ends the others.
            if ranks.rank and not isinstance(error, FloatingPointError):
                sys.exit(1)
            reply = {"error": f"{type(error).__name__}: {error}"}
        if ranks.rank == 0:
            answers.write(json.dumps(reply) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
