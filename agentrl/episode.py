"""`Episode`, which a workflow is given, with its roles, environments and sandboxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

import anyio
from typing_extensions import TypeVar

from agentrl.errors import EpisodeError
from agentrl.reward import MAX_REWARD, add_metrics, checked_number
from agentrl.system.failure_text import shown

if TYPE_CHECKING:
    import gymnasium
    from openai import AsyncOpenAI

    from agentrl.envs import AsyncToolEnv
    from agentrl.proxy import Session
    from agentrl.record.conversations import Conversation
    from agentrl.record.trajectory import Turn
    from agentrl.sandboxes import Baseline, Language, Limits, Sandbox, Test, Verdict
    from agentrl.sandboxes.container import Container, ContainerSpec

    AnyEnv = str | gymnasium.Env[Any, Any] | Callable[..., gymnasium.Env[Any, Any]]

Task = dict[str, Any]
"""One line of the task file."""
TaskT = TypeVar("TaskT", default=Task)


class EnvFactory(Protocol):
    """Makes the environments of episodes: `agentrl.envs.AsyncToolEnv`, with what a run keeps open for them."""

    def __call__(self, env: AnyEnv, /, **kwargs: Any) -> AsyncToolEnv:
        """Return an environment that its first reset makes, with `kwargs`."""
        ...


class EpisodeSandboxes(Protocol):
    """The sandboxes of a run: `agentrl.sandboxes.run_sandboxes.RunSandboxes`."""

    def sandbox(self, image: str | None, limits: Limits | None, *, first: bool) -> AbstractAsyncContextManager[Sandbox]:
        """Return a sandbox, as new, for as long as the context; `first`: the caller holds no other."""
        ...

    def container(self, spec: ContainerSpec) -> AbstractAsyncContextManager[Container]:
        """Return a container that is open as long as the context."""
        ...

    async def grade(self, source: str, tests: Sequence[Test], **options: Any) -> Verdict:
        """Run a program against tests in a sandbox, with the options of `Episode.grade`."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return sums since the run began, or nothing while no sandbox has been used."""
        ...


@dataclass(eq=False)
class EpisodeState:
    """The state of an episode: what it logged, and what must be closed at its end. The runner holds it, also when the `Episode` is gone.

    Once it is `closed`, nothing that the workflow left running changes anything of the episode.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    sandboxes: AsyncExitStack = field(default_factory=AsyncExitStack)
    holds_sandbox: bool = False
    leasing: anyio.Lock = field(default_factory=anyio.Lock)
    """Held by who waits for a sandbox: an episode waits for its first alone, and gets the others at once."""
    envs: list[AsyncToolEnv] = field(default_factory=list)
    closed: bool = False
    trajectories: object = None
    """What the workflow set `Episode.trajectories` to by its end."""

    async def close(self) -> None:
        """Close the environments that the workflow opened, and give back its sandboxes. It gets no others after this."""
        self.closed = True
        async with AsyncExitStack() as stack:  # one that fails to close keeps no other open
            for env in self.envs:
                stack.push_async_callback(env.close)
            stack.push_async_callback(self.sandboxes.aclose)

    def check_open(self) -> None:
        """Check that the episode goes on.

        Raises:
            EpisodeError: It has ended.
        """
        if self.closed:
            raise EpisodeError("the episode has ended")


@dataclass(frozen=True)
class Role:
    """One role of an episode: the same model under a name of its own. Make it with `episode.role`."""

    name: str
    client: AsyncOpenAI
    base_url: str
    api_key: str
    model: str
    _session: Session | None
    _state: EpisodeState

    def reward(self, value: float) -> None:
        """Say what this role earned, in place of the episode's reward.

        Raises:
            BadRewardError: As `Reward` does.
            EpisodeError: The episode has ended.
        """
        self._state.check_open()
        number = checked_number(f"the reward of the role {self.name!r}", value, MAX_REWARD)
        if self._session is not None:
            self._session.role_rewards[self.name] = number


class Episode(Generic[TaskT]):
    """One attempt at one task.

    Attributes:
        task: the line of the task file, as a dict, or as the class that the workflow names: `run(episode: Episode[MyTask])`.
        seed: an integer of this attempt; use it for everything random, so that the attempt can be repeated.
        group_seed: an integer that all attempts of the group share; use it for where they start, so that they can be compared.
        client: an `openai.AsyncOpenAI` that speaks to the model being trained.
        base_url, api_key: the same model for any other program that speaks OpenAI's API.
        model: the model name to ask for.
        trajectories: which conversations are trained on, in place of `rollout.trajectories`: "main", "all", or a function that
            says True, False or a role of each `Conversation`.
    """

    def __init__(
        self,
        *,
        task: TaskT,
        seed: int,
        client: AsyncOpenAI,
        base_url: str,
        api_key: str,
        model: str,
        session: Session | None = None,
        make_env: EnvFactory | None = None,
        sandboxes: EpisodeSandboxes | None = None,
        group_seed: int | None = None,
        state: EpisodeState | None = None,
    ) -> None:
        self.task = task
        self.seed = seed
        self.group_seed = seed if group_seed is None else group_seed
        self.client = client
        self.base_url = base_url
        self.api_key = api_key
        self.model = model
        self._session = session
        self._make_env = make_env
        self._sandboxes = sandboxes
        self._state = state or EpisodeState()
        self.trajectories: Literal["main", "all"] | Callable[[Conversation], bool | str] | None = None

    def env(self, env: AnyEnv, /, **kwargs: Any) -> AsyncToolEnv:
        """Return any gymnasium environment, by its id, `FILE.py:CLASS`, its class or itself, as a tool environment.

        The first `reset` makes it, with `kwargs`. It is closed with the episode.

        Raises:
            EpisodeError: The episode has ended, or was made without environments.
        """
        self._state.check_open()
        if self._make_env is None:
            raise EpisodeError("this episode was made without environments; pass `make_env` to it")
        made = self._make_env(env, **kwargs)
        self._state.envs.append(made)
        return made

    async def sandbox(
        self,
        *,
        image: str | None = None,
        limits: Limits | None = None,
    ) -> Sandbox:
        """Return a locked-down place to run code, as new. It always goes back with the end of the episode.

            sandbox = await episode.sandbox()
            done = await sandbox.run(["python3", "-c", code], timeout_s=5)

        An agent that needs the network or folders of this machine works in a `container`.

        Args:
            image: Docker image; None: `sandbox.image`.
            limits: What a program in it may use; None: the limits of the run.

        Raises:
            SandboxError: None could be had within the pool's `wait_timeout_s`, or none can be started.
            EpisodeError: The episode has ended, or was made without sandboxes.
        """
        state = self._state
        async with state.leasing:
            context = self._of_run().sandbox(image, limits, first=not state.holds_sandbox)
            sandbox = await state.sandboxes.enter_async_context(context)
            state.holds_sandbox = True
            if state.closed:  # meanwhile
                await state.sandboxes.aclose()
            state.check_open()
        return sandbox

    def container(self, spec: ContainerSpec) -> AbstractAsyncContextManager[Container]:
        """Return a container for an agent: an image as its author meant it, with a writable root. It is removed at the end of the context.

            async with episode.container(ContainerSpec(image="python:3.12")) as container:
                done = await container.run(["pip", "--version"])

        A run has as many as `rollout.max_concurrent` of them open at the same time; an episode opens one after another.

        Raises:
            SandboxError: None could be had in time, or none can be started.
            EpisodeError: The episode has ended, or was made without sandboxes.
        """
        return self._of_run().container(spec)

    async def grade(
        self,
        source: str,
        tests: Sequence[Test],
        *,
        language: Language | None = None,
        image: str | None = None,
        limits: Limits | None = None,
        fail_fast: bool = False,
        partial: Baseline | None = None,
        deadline_s: float | None = None,
    ) -> Verdict:
        """Run a program against tests in a sandbox: see `agentrl.sandboxes.grade`.

        Args:
            source: The program.
            tests: The tests.
            language: The program's; None: Python.
            image: Docker image; None: `sandbox.image`.
            limits: What the program may use; None: the limits of the run.
            fail_fast: Stop at the first test that does not pass.
            partial: Give the verdict a `fraction` to reward, the share of tests passed over this: the baseline of a vetted task.
            deadline_s: Bound of the whole; None: one that follows from the tests' own.

        Raises:
            SandboxError: None could be had within the pool's `wait_timeout_s`, or none can be started.
            ConfigError: The tests make no sense; or both `partial` and `fail_fast` are asked for.
            EpisodeError: The episode has ended, or was made without sandboxes.
        """
        return await self._of_run().grade(
            source,
            tests,
            language=language,
            image=image,
            limits=limits,
            fail_fast=fail_fast,
            partial=partial,
            deadline_s=deadline_s,
        )

    def _of_run(self) -> EpisodeSandboxes:
        self._state.check_open()
        if self._sandboxes is None:
            raise EpisodeError("this episode was made without sandboxes; pass `sandboxes` to its runner")
        return self._sandboxes

    def reward(self, completion_id: str, value: float) -> None:
        """Give one model call (`completion.id`) a reward of its own.

        docs/credit.md says what that does to the advantages of its tokens, and of those before it.

        Raises:
            BadRewardError: As `Reward` does.
            EpisodeError: No call of this episode has that id, or the episode has ended.
        """
        number = checked_number(f"the reward of {shown(completion_id)}", value, MAX_REWARD)
        for turn in self._turns(completion_id):
            turn.reward = number

    def mark_failed(self, completion_id: str) -> None:
        """Say that the reply of one model call could not be used, such as a tool call that makes no sense.

        `trainer.turns.failed` says what happens to its tokens.

        Raises:
            EpisodeError: No call of this episode has that id, or the episode has ended.
        """
        for turn in self._turns(completion_id):
            turn.failed = True

    def mark_truncated(self, completion_id: str) -> None:
        """Say that a conversation ends with the reply of one model call because it has outgrown the context.

        `trainer.turns.truncated` says what happens to its tokens, as to those of a reply that was cut off.

        Raises:
            EpisodeError: No call of this episode has that id, or the episode has ended.
        """
        for turn in self._turns(completion_id):
            turn.truncated = True

    def role(self, name: str, *, trained: bool = True) -> Role:
        """Return one of several roles in this episode, with a client and a reward of its own.

        Its calls are compared with those of the same role in the other episodes of the group. Those of a role that is not
        `trained` are recorded, and that is all.

        Raises:
            EpisodeError: The name is no word.
        """
        if not name.replace("-", "_").isidentifier():
            raise EpisodeError(f"the role name {name!r} is no word of letters, digits, - and _")
        if self._session is None:
            return Role(name, self.client, self.base_url, self.api_key, self.model, None, self._state)
        self._session.role(name).trained = bool(trained)
        key = f"{self.api_key}.{name}"
        client = self.client.with_options(api_key=key)
        return Role(name, client, self.base_url, key, self.model, self._session, self._state)

    def _turns(self, completion_id: str) -> list[Turn]:
        self._state.check_open()
        if self._session is None:
            return []  # evaluation against a foreign endpoint: there is no record
        try:
            return self._session.turns_of(completion_id)
        except KeyError:
            raise EpisodeError(f"no model call of this episode has the id {shown(completion_id)}") from None

    @property
    def metrics(self) -> Mapping[str, float]:
        """The numbers logged so far. Add to them with `log`."""
        return MappingProxyType(self._state.metrics)

    def log(self, /, **metrics: float) -> None:
        """Chart numbers of this episode; a later value of a name replaces the earlier.

        The first `MAX_METRICS` names are kept.

        Raises:
            BadRewardError: As `Reward` does.
            EpisodeError: The episode has ended.
        """
        self._state.check_open()
        add_metrics(self._state.metrics, metrics)
