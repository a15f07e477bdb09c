"""What a workflow sees: one `Episode`, and the `Reward` it may return."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from agentrl.errors import BadRewardError, EpisodeError

if TYPE_CHECKING:
    import gymnasium
    from openai import AsyncOpenAI

    from agentrl.envs import AsyncToolEnv
    from agentrl.proxy import Session
    from agentrl.resources import Resources
    from agentrl.sandboxes import Box, Language, Limits, Sandboxes, SandboxPool, Test, Verdict
    from agentrl.sandboxes.pool import Loan, Purpose
    from agentrl.trajectory import Turn

Task = dict[str, Any]
"""One line of the task file."""


@dataclass(frozen=True)
class Reward:
    """What an episode was worth, with numbers to chart beside it.

    Raises BadRewardError when `value` or a metric is not a finite number.
    """

    value: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in {"the reward": self.value, **self.metrics}.items():
            _check_finite(name, value)

    @classmethod
    def of(cls, returned: object) -> Reward:
        """The reward in what `run` returned: a `Reward`, a number, or a bool. Raises BadRewardError for all else."""
        if isinstance(returned, Reward):
            return returned
        if isinstance(returned, bool | int | float):
            return cls(float(returned))
        raise BadRewardError(
            f"run(episode) returned {returned!r} of type {type(returned).__name__}; return a number or a Reward"
        )


@dataclass(frozen=True)
class RunSandboxes:
    """The sandboxes of the run that an episode is part of, and what they are made of where the episode does not say."""

    sandboxes: Sandboxes
    image: str
    runtime: str | None


@dataclass(frozen=True)
class Branch:
    """One role of an episode: the same model under a name of its own. Make it with `episode.branch`."""

    name: str
    client: AsyncOpenAI
    base_url: str
    api_key: str
    model: str
    _session: Session | None

    def reward(self, value: float) -> None:
        """What this role earned, in place of the episode's reward. Raises BadRewardError when it is not a finite number."""
        _check_finite(f"the reward of the branch {self.name!r}", value)
        if self._session is not None:
            self._session.branch_rewards[self.name] = float(value)


class Episode:
    """One attempt at one task.

    Attributes:
        task: the line of the task file, as a dict.
        seed: an integer of this attempt; use it for everything random, so that the attempt can be repeated.
        group_seed: an integer that all attempts of the group share; use it for where they start, so that they can be compared.
        client: an `openai.AsyncOpenAI` that speaks to the model being trained.
        base_url, api_key: the same model for any other program that speaks OpenAI's API.
        model: the model name to ask for.
    """

    def __init__(
        self,
        *,
        task: Task,
        seed: int,
        client: AsyncOpenAI,
        base_url: str,
        api_key: str,
        model: str,
        session: Session | None = None,
        sandboxes: RunSandboxes | None = None,
        resources: Resources | None = None,
        group_seed: int | None = None,
    ) -> None:
        self.task = task
        self.seed = seed
        self.group_seed = seed if group_seed is None else group_seed
        self.client = client
        self.base_url = base_url
        self.api_key = api_key
        self.model = model
        self.metrics: dict[str, float] = {}
        self._session = session
        self._sandboxes = sandboxes
        self._resources = resources
        self._loans: list[Loan] = []
        self._envs: list[AsyncToolEnv] = []

    def env(self, env: str | Callable[..., gymnasium.Env[Any, Any]], /, **kwargs: Any) -> AsyncToolEnv:
        """Any gymnasium environment, by its id or its class, as a tool environment.

        The first `reset` makes it, with `kwargs`. It is closed with the episode.
        """
        import gymnasium

        from agentrl.envs import AsyncToolEnv

        make = partial(gymnasium.make, env, **kwargs) if isinstance(env, str) else partial(env, **kwargs)
        made = AsyncToolEnv(make, self._resources)
        self._envs.append(made)
        return made

    async def sandbox(
        self, *, image: str | None = None, limits: Limits | None = None, cpus: float = 1.0, network: bool = False
    ) -> Box:
        """A locked-down place to run code, as new. It goes back with the end of the episode, whatever happens.

            box = await episode.sandbox()
            done = await box.run(["python3", "-c", code], timeout_s=5)

        Raises SandboxError when there is none to be had, saying what to do.
        """
        pool = await self._pool("lend", image=image, limits=limits, cpus=cpus, network=network)
        (loan,) = await pool.borrow()
        self._loans.append(loan)
        return loan.box

    async def judge(
        self,
        source: str,
        tests: Sequence[Test],
        *,
        language: Language | None = None,
        image: str | None = None,
        limits: Limits | None = None,
        fail_fast: bool = False,
    ) -> Verdict:
        """Run a program against tests in a sandbox: see `agentrl.sandboxes.judge`. Raises SandboxError, ConfigError."""
        from agentrl.sandboxes import PYTHON, judge

        pool = await self._pool("judge", image=image, limits=limits, cpus=1.0, network=False)
        return await judge(source, tests, pool=pool, language=language or PYTHON, limits=limits, fail_fast=fail_fast)

    async def _pool(
        self, purpose: Purpose, *, image: str | None, limits: Limits | None, cpus: float, network: bool
    ) -> SandboxPool:
        from agentrl.sandboxes import BoxSpec, Limits

        if self._sandboxes is None:
            raise EpisodeError("this episode was made without sandboxes; pass `sandboxes` to its runner")
        spec = BoxSpec(
            image=image or self._sandboxes.image,
            limits=limits or Limits(),
            cpus=cpus,
            network=network,
            runtime=self._sandboxes.runtime,
        )
        return await self._sandboxes.sandboxes.pool(spec, purpose)

    def reward(self, completion_id: str, value: float) -> None:
        """Give one model call (`completion.id`) a reward of its own.

        docs/credit.md says what that does to the advantages of its tokens, and of those before it. Raises
        BadRewardError when `value` is not a finite number, EpisodeError when no call of this episode has that id.
        """
        _check_finite(f"the reward of {completion_id}", value)
        for turn in self._turns(completion_id):
            turn.credit = float(value)

    def mark_failed(self, completion_id: str) -> None:
        """Say that the reply of one model call could not be used, such as a tool call that makes no sense.

        `trainer.failed_turns` says what happens to its tokens. Raises EpisodeError when no call of this episode has that id.
        """
        for turn in self._turns(completion_id):
            turn.failed = True

    def branch(self, name: str, *, trained: bool = True) -> Branch:
        """One of several roles in this episode, with a client and a reward of its own.

        Its calls are compared with those of the same role in the other episodes of the group. Those of a role that is not
        `trained` are recorded, and that is all. Raises EpisodeError for a name that is no word.
        """
        if not name.replace("-", "_").isidentifier():
            raise EpisodeError(f"the branch name {name!r} is no word of letters, digits, - and _")
        if self._session is None:
            return Branch(name, self.client, self.base_url, self.api_key, self.model, None)
        self._session.branch(name).trained = trained
        key = f"{self.api_key}.{name}"
        return Branch(name, self.client.with_options(api_key=key), self.base_url, key, self.model, self._session)

    def _turns(self, completion_id: str) -> list[Turn]:
        if self._session is None:
            return []  # evaluation against a foreign endpoint: there is no record
        try:
            return self._session.turns_of(completion_id)
        except KeyError:
            raise EpisodeError(f"no model call of this episode has the id {completion_id!r}") from None

    def log(self, **metrics: float) -> None:
        """Chart numbers of this episode; a later value of a name replaces the earlier."""
        for name, value in metrics.items():
            _check_finite(f"the metric {name!r}", value)
        self.metrics.update(metrics)

    async def close(self) -> None:
        """Close the environments that the workflow opened, and give back its sandboxes."""
        for loan in self._loans:
            loan.give_back()
        async with AsyncExitStack() as stack:  # one that fails to close keeps no other open
            for env in self._envs:
                stack.push_async_callback(env.close)


def _check_finite(name: str, value: object) -> None:
    if not isinstance(value, bool | int | float) or not math.isfinite(value):
        raise BadRewardError(f"{name} is {value!r}; it must be a finite number")
