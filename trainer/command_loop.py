"""The trainer process: `python -m agentrl.trainer WEIGHTS_DIR`, started by `agentrl train`.

It reads the run's configuration from the first line of its standard input, then one JSON command a line, and answers each with one line
on standard output; it ends when its standard input closes. The episodes of a step come in a file (`agentrl.store.batches`), and
weights are published into WEIGHTS_DIR, with figures of single tokens beside them (`agentrl.store.token_figures`): of the run's directory it needs nothing, which may be on another machine.

    {"op": "load", "checkpoint": PATH | null}      -> {"version": 0, "weights": PATH}
    {"op": "step", "groups": [ids], "episodes": PATH, "after": 0}
                                                   -> {"version": 1, "weights": PATH, "trained": {...}, "metrics": {...},
                                                       "saving": false}
    {"op": "save", "directory": PATH, "step": 1}
                                                   -> {}, while it is written
    {"op": "saved"}                                -> {}, when it is
    {"op": "join_weight_group", "where": [ADDRESS, ...]} -> {}
    {"op": "weight_buckets"}                       -> {"buckets": [{"names", "dtypes", "shapes"}]}
    {"op": "send_bucket", "index": 0}              -> {}
    any of them, failed                            -> {"error": TEXT, "lost": false, "disk": false}

A step is all or nothing. `after` and `step` say at which step the run takes the process to be, and where it is at another nothing is
done. After an error in the middle of a step no command but the end of
the process is obeyed. `lost` says that only a new process, from a checkpoint, goes on; `disk`, that it was the disk that refused.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from agentrl.config import RunConfig
from agentrl.config.machine import cpu_threads
from agentrl.config.trainer import PUBLISHED_VERSIONS_KEPT
from agentrl.errors import AgentRLError, TrainerStateError
from agentrl.store.batches import trained_step
from agentrl.store.episodes import FinishedEpisode
from agentrl.store.store import Store
from agentrl.store.token_figures import write_figures
from agentrl.trainer.algorithms.teacher import with_teacher_logprobs
from agentrl.trainer.model.ranks import Ranks, RankZeroError, gather_full_tensors
from agentrl.trainer.packing import TrainingSequence
from agentrl.trainer.policies import Policies, together
from agentrl.trainer.sequences import training_sequences
from agentrl.trainer.step_metrics import (
    altered_sampling,
    distance_to_teacher,
    metrics_by_role,
    of_role,
    staleness,
    step_metrics,
)
from agentrl.trainer.token_figures import figures_by_episode
from agentrl.trainer.weight_sender import Bucket, WeightGroup, make_buckets

BUCKET_BYTES = 512 * 2**20
"""How much of the weights is broadcast at a time: the memory that sender and receivers need beside the weights."""
MISMATCH_SEQUENCES = 8
"""Trajectories a step on which engine and trainer are compared, under the very weights that sampled them."""
TEACHER_SHARE = 0.5
"""How much of a step's time a teacher has: its error must arrive before the trainer is taken for dead."""


class TrainerProcess:
    """The commands of the trainer process, one method each. Every rank carries out every command."""

    def __init__(self, config: RunConfig, weights_dir: Path, ranks: Ranks | None = None) -> None:
        """Keep what the policies are made of.

        Args:
            config: The run's configuration.
            weights_dir: Where weights are published.
            ranks: The trainer's ranks; one by default.
        """
        self._config = config
        self._weights_dir = weights_dir
        self._published: dict[int, Path] = {}
        self._weight_group: WeightGroup | None = None
        self._buckets: list[Bucket] = []
        self._ranks = ranks or Ranks()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._broken: str | None = None
        """What happened in the middle of a step, or of loading."""

    @cached_property
    def _policies(self) -> Policies:
        """The policies, made in the first command, so that what goes wrong in that is answered too.

        Raises:
            ConfigError: The model cannot be trained.
        """
        torch.set_num_threads(cpu_threads(self._config, training=True))
        torch.manual_seed(self._config.seed)
        return Policies(Path(self._config.model.path), self._config.trainer, self._ranks)

    def answer(self, line: str) -> str:
        """Carry out one command.

        Args:
            line: The command, as JSON.

        Returns:
            The answer, as JSON.
        """
        command = json.loads(line)
        operation = command.pop("op")
        try:
            reply = getattr(self, operation)(**command)
        except Exception as error:
            traceback.print_exc()
            # What all ranks see alike, rank 0 reports. A rank that fails alone ends, and whoever started it ends the others.
            if self._ranks.rank and not isinstance(error, FloatingPointError | RankZeroError):
                sys.exit(1)
            # Where rank 0 fails alone, the others are elsewhere in the command than it is.
            broken = self._ranks.size > 1 or self._broken is not None
            # An error that would come again is not worth a new process.
            for_good = isinstance(error, FloatingPointError | AgentRLError)
            lost = isinstance(error, TrainerStateError) or (broken and not for_good)
            disk = isinstance(error, OSError | SafetensorError)
            reply = {"error": f"{type(error).__name__}: {error}", "lost": lost, "disk": disk}
        return json.dumps(reply)

    @contextmanager
    def _changing_policy(self) -> Iterator[None]:
        """Note an error in what changes the policy: what is in memory is no policy any more."""
        try:
            yield
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}"
            raise

    def _check(self, step: int | None = None) -> None:
        """Check that no step has failed in its middle and, where one is given, that the policy is at this `step`.

        Raises:
            TrainerStateError: It is not.
        """
        if self._broken is not None:
            raise TrainerStateError(f"a step had failed in its middle ({self._broken})")
        if step is not None and step != self._policies.version:
            raise TrainerStateError(f"the trainer is at step {self._policies.version}, and the run at step {step}")

    def load(self, checkpoint: str | None) -> dict[str, Any]:
        """Go on from a checkpoint, or from the model as it is, and publish its weights.

        Args:
            checkpoint: The path of one; None for the model as it is.

        Returns:
            The answer.

        Raises:
            TrainerStateError: A step or a load has failed in its middle before.
        """
        self._check()
        policies = self._policies
        with self._changing_policy():
            if checkpoint is not None:
                policies.load(Path(checkpoint))
            self._adopt_published()
            return self._publish()

    def step(self, groups: list[int], episodes: str, after: int | None = None) -> dict[str, Any]:
        """Train on some groups and publish the new weights.

        Args:
            groups: Their ids.
            episodes: The file that holds their episodes.
            after: The step that the policy must be at; None for any.

        Returns:
            The answer, with the step's metrics and what it was over.

        Raises:
            TrainerStateError: A step has failed in its middle, or the policy is at another step. Nothing was done.
            StoreError: The file cannot be read. Nothing was done.
        """
        started = time.perf_counter()
        self._check(after)
        with Store(Path(episodes), read_only=True) as store:
            batch, restart = store.episodes(groups), store.restart
        config = self._config.trainer
        metrics = altered_sampling([episode.record for episode in batch])
        by_episode = training_sequences(batch, config)  # [episode][path]
        sequences = [s for own in by_episode for s in own]
        origins, group_sizes = _origins(batch, by_episode)
        # Weights of an earlier start are gone, and their versions may have been given to others since. A reply of an altered sampling has
        # logprobs of its own.
        current = [
            s
            for episode, own in zip(batch, by_episode, strict=True)
            if episode.restart == restart and not episode.replayed_tokens
            if not any(turn.trained and turn.alterations for turn in episode.record.turns)
            for s in own
        ]
        metrics |= staleness(sequences, self._policies.version)
        if config.teacher is not None:
            timeout_s = TEACHER_SHARE * config.step_timeout_s
            sequences = self._ranks.from_rank_zero(
                partial(with_teacher_logprobs, sequences, config.teacher.url, timeout_s)
            )
            metrics |= distance_to_teacher(sequences)
        with self._changing_policy():
            # Whatever a step draws at random, it draws again when it is taken again.
            torch.manual_seed(self._config.seed + self._policies.version)
            for role, compared in self._policies.mismatch(current, self._published, MISMATCH_SEQUENCES).items():
                metrics |= {of_role(role, f"logprob_mismatch_{name}"): value for name, value in vars(compared).items()}
            results = self._policies.step(sequences)
            result = together(results)
            metrics |= step_metrics(result, sequences, config) | metrics_by_role(results, sequences, batch, config)
            trained = trained_step(
                self._policies.version,
                tuple((group, group_sizes[group]) for group in sorted(groups)),
                [[origins[i] for i in part] for part in result.minibatches],
                result.optimizer_steps,
            )
            reply = self._publish()
            if self._ranks.rank == 0:
                write_figures(Path(reply["weights"]), figures_by_episode(result.token_figures, batch))
        metrics["train_s"] = time.perf_counter() - started
        saving = self._writing is not None and not self._writing.done()
        return {**reply, "trained": trained.to_json(), "metrics": metrics, "saving": saving}

    def save(self, directory: str, step: int) -> dict[str, Any]:
        """Begin to write a checkpoint, once the one before is written.

        Args:
            directory: Where it is to be.
            step: The policy's step.

        Returns:
            The answer.

        Raises:
            TrainerStateError: The policy is not that of `step`.
        """
        self._check(step)
        self.saved()
        write = self._policies.snapshot(Path(directory), Path(self._config.model.path))
        self._writing = self._writer.submit(write)
        return {}

    def saved(self) -> dict[str, Any]:
        """Wait until the checkpoint is written, and return the answer. What kept it from being written is raised."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()
        return {}

    def join_weight_group(self, where: list[Any]) -> dict[str, Any]:
        """Join the process group over which weights go to the servers; a group of before is left. Of several ranks the first does.

        Args:
            where: The arguments of `WeightGroup`.

        Returns:
            The answer.
        """
        if self._ranks.rank:
            return {}
        if self._weight_group is not None:
            self._weight_group.close()
        self._weight_group = WeightGroup(*where)
        return {}

    def weight_buckets(self) -> dict[str, Any]:
        """Make the buckets of the current weights ready to send, and return the answer: what each holds."""
        parameters = gather_full_tensors(
            self._policies.by_role[""].model.named_parameters(), self._ranks, lambda tensor: tensor
        )
        self._buckets = make_buckets(parameters.items(), BUCKET_BYTES)
        return {"buckets": [bucket.manifest() for bucket in self._buckets]}

    def send_bucket(self, index: int) -> dict[str, Any]:
        """Broadcast the bucket `index`, and return the answer."""
        if self._ranks.rank == 0:
            assert self._weight_group is not None
            self._weight_group.send(self._buckets[index])
        return {}

    def _adopt_published(self) -> None:
        """Take over the weights that a trainer before this one published for the run: servers may still load them."""
        if self._ranks.rank == 0:
            for path in self._weights_dir.glob("v*.partial"):
                shutil.rmtree(path, ignore_errors=True)
        found = {int(path.name[1:]): path for path in self._weights_dir.glob("v*") if path.name[1:].isdigit()}
        self._published = self._ranks.broadcast_object(found)

    def _publish(self) -> dict[str, Any]:
        current = self._policies.version
        path = self._published[current] = self._policies.publish(self._weights_dir)
        for version in sorted(self._published)[:-PUBLISHED_VERSIONS_KEPT]:
            if version != current:
                old = self._published.pop(version)
                if self._ranks.rank == 0:
                    shutil.rmtree(old, ignore_errors=True)
        return {"version": current, "weights": str(path)}


def _origins(
    episodes: Sequence[FinishedEpisode], by_episode: Sequence[Sequence[TrainingSequence]]
) -> tuple[list[tuple[int, int]], Counter[int]]:
    """Return ([sequence] (group, its number in the group), how many sequences each group has). `by_episode`: [episode][path]."""
    sizes: Counter[int] = Counter()
    origins = []
    for episode, own in zip(episodes, by_episode, strict=True):
        first = sizes[episode.group_id]
        origins += [(episode.group_id, number) for number in range(first, first + len(own))]
        sizes[episode.group_id] += len(own)
    return origins, sizes
