"""Several policies over one model: a LoRA adapter for each role of `trainer.lora.roles`, which learns from its role's turns alone.

    batch ─► sequences of "writer" ─► Policy "writer": adapter, optimizer, critic ─┐
        └──► sequences of "critic" ─► Policy "critic": adapter, optimizer, critic ─┴─► one version: v3/roles/writer, v3/roles/critic

One training step is one step of each policy, so that a version names the weights of all of them. A policy whose role has no turn in a
batch stays as it is, to the bit. Their models share every weight but their adapters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch

from agentrl.config import TrainerConfig
from agentrl.engine.adapters import ROLES
from agentrl.engine.model_adapters import sharing_weights
from agentrl.errors import ConfigError
from agentrl.store.manifest import Manifest
from agentrl.trainer.algorithms.losses import LossStats, Mismatch, mismatch
from agentrl.trainer.model.checkpoint import States, read_checkpoint, snapshot_checkpoint, write_weights
from agentrl.trainer.model.packed_model import load_model
from agentrl.trainer.model.ranks import Ranks
from agentrl.trainer.packing import TrainingSequence
from agentrl.trainer.policy import Policy
from agentrl.trainer.step_result import StepResult


class Policies:
    """The policies of a run by role; a run without `trainer.lora.roles` has one, for the role "". `version` is that of all."""

    def __init__(self, model_path: Path, config: TrainerConfig, ranks: Ranks | None = None) -> None:
        """Load the model once, and make a policy over it for each role.

        Args:
            model_path: A Hugging Face model directory.
            config: How they learn.
            ranks: The trainer's ranks; one by default. All of them must call every method together. Several ranks shard the model anew
                for each role.

        Raises:
            ConfigError: The model cannot be trained, or not so.
        """
        self.ranks = ranks or Ranks()
        roles = config.roles or [""]
        one_base = self.ranks.size == 1 and len(roles) > 1
        models = sharing_weights(load_model(model_path), len(roles)) if one_base else [None] * len(roles)
        self.by_role = {
            role: Policy(model_path, config, self.ranks, model) for role, model in zip(roles, models, strict=True)
        }

    @property
    def version(self) -> int:
        """How many training steps they have taken."""
        return next(iter(self.by_role.values())).version

    @property
    def states(self) -> States:
        """All that training changes, by role."""
        return {role: policy.state for role, policy in self.by_role.items()}

    def step(self, sequences: Sequence[TrainingSequence]) -> dict[str, StepResult]:
        """Take one training step of each policy, over the sequences of its role alone.

        Args:
            sequences: [sequence] the batch.

        Returns:
            What came of each role that has a sequence. The numbers of their sequences are those of the whole batch.

        Raises:
            ConfigError: A sequence is of no role that is trained.
            FloatingPointError: A gradient was not finite several optimizer steps in a row.
        """
        results = {}
        for role, numbers in self._numbers_by_role(sequences).items():
            result = self.by_role[role].step([sequences[number] for number in numbers])
            minibatches = [[numbers[index] for index in part] for part in result.minibatches]
            if numbers or len(self.by_role) == 1:
                results[role] = replace(result, minibatches=minibatches)
        return results

    def _numbers_by_role(self, sequences: Sequence[TrainingSequence]) -> dict[str, list[int]]:
        """Return, for each role, which of the sequences are its own.

        Raises:
            ConfigError: A sequence is of no role that is trained.
        """
        numbers: dict[str, list[int]] = {role: [] for role in self.by_role}
        for number, sequence in enumerate(sequences):
            if sequence.adapter not in numbers:
                known = ", ".join(role for role in self.by_role if role) or "none"
                raise ConfigError(
                    f"the batch has tokens of the adapter of the role {sequence.adapter!r}, recorded by an earlier start of the run, and "
                    f"`trainer.lora.roles` names {known}; go on with the roles that the run began with"
                )
            numbers[sequence.adapter].append(number)
        return numbers

    def mismatch(
        self, sequences: Sequence[TrainingSequence], weights: Mapping[int, Path], at_most: int
    ) -> dict[str, Mismatch]:
        """Compare the engine's logprobs with those of the trainer, each token under the very adapter and version that sampled it.

        Args:
            sequences: Those that can be compared.
            weights: The published weights by version.
            at_most: How many sequences of each role are compared.

        Returns:
            The comparison by role, and of all tokens by "". What has no token left is not in it.

        Raises:
            ConfigError: A sequence is of no role that is trained.
        """
        engine, trainer, found = [torch.zeros(0)], [torch.zeros(0)], {}
        for role, numbers in self._numbers_by_role(sequences).items():
            own = {version: path / ROLES / role if role else path for version, path in weights.items()}
            pairs = self.by_role[role].logprob_pairs([sequences[number] for number in numbers[:at_most]], own)
            engine.append(pairs[0])
            trainer.append(pairs[1])
            found[role] = mismatch(*pairs)
        found[""] = mismatch(torch.cat(engine), torch.cat(trainer))
        return {role: compared for role, compared in found.items() if compared is not None}

    def publish(self, directory: Path) -> Path:
        """Write what is trained of all, there whole or not at all.

        Args:
            directory: Where the weights of all versions are.

        Returns:
            `directory`/v<version>.
        """
        target = directory / f"v{self.version}"
        write_weights({role: policy.model for role, policy in self.by_role.items()}, target, self.ranks)
        return target

    def snapshot(self, directory: Path, model_path: Path) -> Callable[[], None]:
        """Copy the policies as they are now, for a checkpoint.

        Args:
            directory: Where the checkpoint is to be.
            model_path: The model that training started from: what lies beside its weights is copied too.

        Returns:
            What writes the checkpoint when it is called, in any thread, while training goes on.
        """
        return snapshot_checkpoint(
            directory,
            self.states,
            model_path=model_path,
            step=self.version,
            ranks=self.ranks,
        )

    def load(self, directory: Path) -> Manifest:
        """Go on from a checkpoint; see `Policy.load`.

        Raises:
            CheckpointError: It is damaged.
            ConfigError: It does not fit the model or the configuration, or is of other roles.
        """
        manifest = read_checkpoint(directory, self.states, self.ranks)
        for policy in self.by_role.values():
            policy.go_on(manifest.step)
        return manifest


def together(results: Mapping[str, StepResult]) -> StepResult:
    """Return what the steps of all roles were together: sums, and for the norm of the gradient and the critics means over the roles.

    The loss is the sum of the roles' losses, and the learning rate the highest.
    """
    steps = list(results.values())
    if len(steps) == 1:
        return steps[0]
    norms = [step.grad_norm for step in steps if step.grad_norm is not None]
    return StepResult(
        loss=math.fsum(step.loss for step in steps),
        grad_norm=_mean(norms) if norms or not steps else None,
        lr=max((step.lr for step in steps), default=0.0),
        stats=sum((step.stats for step in steps), LossStats()),
        skipped=sum(step.skipped for step in steps),
        computed_tokens=sum(step.computed_tokens for step in steps),
        log_importance_weights=torch.cat([torch.zeros(0), *(step.log_importance_weights for step in steps)]),
        critic={name: _mean([step.critic[name] for step in steps if step.critic]) for name in _names(steps)},
        optimizer_steps=sum(step.optimizer_steps for step in steps),
        minibatches=list(chain.from_iterable(step.minibatches for step in steps)),
        token_figures=torch.cat([torch.zeros(0, 5), *(step.token_figures for step in steps)]),
    )


def _names(steps: Iterable[StepResult]) -> list[str]:
    return sorted({name for step in steps for name in step.critic})


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(1, len(values))
