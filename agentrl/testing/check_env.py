"""`check_env`: play a user's environment as a run would, and say what is wrong with it."""

from __future__ import annotations

import json
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NoReturn

import anyio
import gymnasium
from gymnasium.utils.env_checker import check_env as check_gymnasium_env

from agentrl.envs import AsyncToolEnv, GymEnv
from agentrl.errors import CheckFailedError, UsageError, one_line
from agentrl.rollout.episode_parts import open_environments
from agentrl.system.loop_watchdog import watch_loop
from agentrl.system.tasks import in_users_thread
from agentrl.testing.exercise import WRONG_CALLS, exercising_reply
from agentrl.testing.leaks import REMEDIES, held_now, leaked_since
from agentrl.testing.scripted_model import as_message

BLOCKED_AFTER_S = 0.2
ROUNDS = 4
"""How often an environment is made and closed to see what it leaves."""


@dataclass
class Problems:
    """The problems of one subject, such as an environment; each is noted once."""

    subject: str
    found: dict[str, str] = field(default_factory=dict)
    """Remedies by problem."""

    def add(self, problem: str, remedy: str) -> None:
        """Note a problem, unless one with the same remedy is there already: it is the same mistake seen again."""
        if remedy not in self.found.values():
            self.found.setdefault(problem, remedy)

    def fail(self, problem: str, remedy: str) -> NoReturn:
        """Note a problem after which nothing else can be checked.

        Raises:
            CheckFailedError: Always.
        """
        self.add(problem, remedy)
        raise self.as_error()

    def as_error(self) -> CheckFailedError:
        """Return the error that lists every problem with its remedy."""
        count = "1 problem" if len(self.found) == 1 else f"{len(self.found)} problems"
        lines = [f"{number}. {problem}\n   {remedy}" for number, (problem, remedy) in enumerate(self.found.items(), 1)]
        return CheckFailedError("\n".join([f"{self.subject} has {count}:", *lines]))


async def check_env(
    env: str | Callable[..., gymnasium.Env[Any, Any]],
    /,
    tasks: Sequence[Any] = (None,),
    *,
    seed: int = 0,
    max_steps: int = 200,
    step_timeout_s: float = 120.0,
    **kwargs: Any,
) -> None:
    """Play an environment with calls of its tools, right and wrong, and with answers, and raise what is wrong with it.

    It must open with messages, offer tools that OpenAI's API takes, answer every call and reward with finite numbers, end, begin
    anew and alike for the same seed and task, leave the event loop free, and leave nothing behind when it is closed. One that is
    no `ToolEnv` is checked by gymnasium's own `check_env` too.

    Args:
        env: What `episode.env` takes: an id of gymnasium's registry, FILE.py:CLASS, an environment, a class, or a function that makes one.
        tasks: Tasks to reset with. None is a random one.
        seed: Of every reset.
        max_steps: Messages in which an episode must end.
        step_timeout_s: Bound of one step.
        kwargs: Arguments of its making.

    Raises:
        CheckFailedError: Something is wrong. The message lists every problem with its remedy.
        UsageError: There is no task.
    """
    if not tasks:
        raise UsageError("tasks is empty, so nothing would be checked; give a few of your tasks, or leave it out")
    problems = Problems(f"the environment {env if isinstance(env, str) else getattr(env, '__name__', env)}")
    async with open_environments() as make_env:
        with watch_loop(BLOCKED_AFTER_S) as watchdog:
            for task in tasks:
                with suppress(CheckFailedError):
                    await _Check(lambda: make_env(env, **kwargs), task, seed, max_steps, step_timeout_s, problems).run()
                if problems.found:
                    break  # other tasks would show the same
        for place in watchdog.blocked:
            problems.add(
                f"{place} blocks the event loop, and with it every episode",
                "make it a plain `def`, which runs in a thread, or await an asynchronous call there",
            )
    if problems.found:
        raise problems.as_error()


@dataclass(frozen=True)
class _Check:
    make: Callable[[], AsyncToolEnv]
    task: Any
    seed: int
    max_steps: int
    step_timeout_s: float
    problems: Problems

    async def run(self) -> None:
        async with self._opened() as env:
            first = await self._play(env)
            await self._play_the_rest(env, len(first) - 1)
            await self._check_gymnasium(env)
            again = await self._play(env)
        async with self._opened() as env:
            other = await self._play(env)
        if difference := _difference(first, other):
            remedy = "draw everything random with self.np_random, which reset seeds: the episodes of a group are compared with each other"
            self.problems.add(f"the same seed and task went differently: {difference}", remedy)
        elif difference := _difference(first, again):
            remedy = "set every attribute that an episode changes in the reset"
            self.problems.add(f"a second episode of one environment went differently: {difference}", remedy)
        await self._check_leaks()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[AsyncToolEnv]:
        """Make an environment, and close it at the end."""
        env = self.make()
        try:
            yield env
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await env.close()
                except Exception as error:
                    remedy = "let it be closed at any time, also after a fault"
                    self.problems.add(f"closing it raised {_named(error)}", remedy)

    async def _reset(self, env: AsyncToolEnv) -> None:
        try:
            with anyio.fail_after(self.step_timeout_s):
                await env.reset(seed=self.seed, options=self.task)
        except Exception as error:
            what = f"reset with the task {_shown(self.task)}"
            remedy = "a reset must open every task of yours, again and again, in time: pass tasks of the right form as check_env(env, tasks=[...])"
            if env._env is None:
                what, remedy = "making it", "check its name and its arguments: check_env(env, tasks, **arguments)"
            self.problems.fail(f"{what} raised {_named(error)}", remedy)

    async def _play_the_rest(self, env: AsyncToolEnv, turn: int) -> None:
        """Play from `turn` on what the first episode was too short for, in as many as it takes, up to one that answers."""
        tools = len(env.tool_env.tools)
        answer = tools + WRONG_CALLS if tools else 0
        while turn <= answer:
            turn += len(await self._play(env, turn)) - 1

    async def _play(self, env: AsyncToolEnv, first_turn: int = 0) -> list[Any]:
        """Play one episode to its end, with the replies from `first_turn` on.

        Returns:
            The opening, and the observation and reward of each step.
        """
        await self._reset(env)
        self._check_messages("reset", env.messages)
        self._check_tools(env)
        played: list[Any] = [list(env.messages)]
        turn = first_turn
        while not env.done:
            if turn == first_turn + self.max_steps:
                self.problems.fail(
                    f"an episode did not end within {self.max_steps} messages",
                    "end it: max_turns or Result(done=True) of a ToolEnv, max_episode_steps of another",
                )
            message = as_message(exercising_reply(env.tool_env.tools, turn), f"call-{turn}")
            before = len(env.messages) + 1
            try:
                with anyio.fail_after(self.step_timeout_s):
                    reward = await env.step(message)
            except Exception as error:
                self.problems.fail(
                    f"the message {_shown(message)} made step raise {_named(error)}",
                    "mend it; a tool that means to refuse a call raises ToolCallError, and an answer must earn a finite number whatever its text",
                )
            self._check_messages("step", env.messages[before:])
            played.append((env.messages[before:], reward))
            turn += 1
        return played

    def _check_messages(self, method: str, messages: list[Any]) -> None:
        try:
            json.dumps(messages, allow_nan=False)
            sound = all(message["role"] in ("system", "user", "assistant", "tool") for message in messages)
        except (TypeError, ValueError, KeyError):
            sound = False
        if not sound or (not messages and method == "reset"):
            self.problems.fail(
                f"{method} returned the messages {_shown(messages)}",
                'return the text of the user, or a list of JSON such as {"role": "user", "content": "..."}; one at least opens an episode',
            )

    def _check_tools(self, env: AsyncToolEnv) -> None:
        try:
            undescribed = [tool.name for tool in env.tool_env.toolset if not tool.description]
        except Exception as error:
            remedy = "give every parameter of a tool a type that pydantic knows"
            self.problems.fail(f"its tools cannot be listed: {_named(error)}", remedy)
        if undescribed:
            remedy = "write a docstring: it is what the model is told of the tool"
            self.problems.fail(f"the tool {undescribed[0]!r} has no description", remedy)

    async def _check_gymnasium(self, env: AsyncToolEnv) -> None:
        """Let gymnasium's own checker look at an environment that is played through a `GymEnv`."""
        inner = env.tool_env
        if not isinstance(inner, GymEnv):
            return

        def check() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check_gymnasium_env(inner.inner.unwrapped, skip_render_check=True)

        try:
            await in_users_thread(check)
        except Exception as error:
            # It may, and what is left to check is checked here too; numpy's False counts as this for gymnasium.
            if "truncates after 1 step" not in str(error):
                remedy = "mend the environment as gymnasium's documentation says"
                self.problems.add(f"gymnasium's check_env says: {one_line(error)}", remedy)

    async def _check_leaks(self) -> None:
        before = await held_now()
        for _ in range(ROUNDS):
            async with self._opened() as env:
                await self._reset(env)
        for kind, names in leaked_since(before, await held_now(), ROUNDS).items():
            what = f"made and closed {ROUNDS} times, it leaves {kind} behind: {', '.join(names)}"
            self.problems.add(what, REMEDIES[kind])


def _difference(first: list[Any], second: list[Any]) -> str:
    """Return the first place where two episodes differ; "" where they are alike."""
    pairs = zip_longest(first, second)
    return next((f"{_shown(one)} and then {_shown(other)}" for one, other in pairs if one != other), "")


def _shown(value: Any) -> str:
    return one_line(repr(value), 200)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error, 300)}"
