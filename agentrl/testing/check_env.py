"""`check_env`: play a user's environment as a run would, and say what is wrong with it."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import gymnasium
from gymnasium.utils.env_checker import check_env as check_gymnasium_env

from agentrl.envs import AsyncToolEnv, GymEnv
from agentrl.envs.async_env import CLOSE_TIMEOUT_S
from agentrl.errors import BadRewardError, UsageError, one_line
from agentrl.rollout.episode_parts import open_environments
from agentrl.system.loop_watchdog import watch_loop
from agentrl.system.tasks import in_users_thread
from agentrl.testing.exercise import WRONG_CALLS, exercising_reply
from agentrl.testing.leaks import REMEDIES, held_now
from agentrl.testing.problems import Problems
from agentrl.testing.scripted_model import as_message

BLOCKED_AFTER_S = 0.2
ROUNDS = 4
"""How often an environment is made and closed to see what it leaves."""
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ROLES = ("system", "user", "assistant", "tool")


@dataclass
class _Played:
    """What an environment answered to one episode."""

    opening: list[Any]
    observations: list[Any]
    rewards: list[float]


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
        env: What `episode.env` takes: an id of gymnasium's registry, a class, or a function that makes one.
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
                subject = _Checked(lambda: make_env(env, **kwargs), task, seed, max_steps, step_timeout_s, problems)
                await subject.check()
                if problems.found:
                    break  # other tasks would show the same
        for place in watchdog.blocked:
            problems.add(
                f"{place} blocks the event loop, and with it every episode",
                "make it a plain `def`, which runs in a thread, or await an asynchronous call there",
            )
    problems.raise_any()


@dataclass(frozen=True)
class _Checked:
    make: Callable[[], AsyncToolEnv]
    task: Any
    seed: int
    max_steps: int
    step_timeout_s: float
    problems: Problems

    async def check(self) -> None:
        env = self.make()
        try:
            first = await self._play(env)
            if first is None or not await self._play_the_rest(env, len(first.rewards)):
                return
            await self._check_gymnasium(env)
            again = await self._play(env)
        finally:
            await self._close(env)
        other = self.make()
        try:
            second = await self._play(other)
        finally:
            await self._close(other)
        if again is None or second is None:
            return
        self._compare(first, again, second)
        await self._check_leaks()

    def _compare(self, first: _Played, again: _Played, second: _Played) -> None:
        add = self.problems.add
        if first.opening != second.opening:
            add(
                f"two resets with the seed {self.seed} and the same task open differently: {_shown(first.opening)} and "
                f"{_shown(second.opening)}",
                "draw everything random with self.np_random, which reset seeds: the episodes of a group are compared with each other",
            )
        elif first.opening != again.opening:
            add(
                f"a second reset of the same environment opens differently: {_shown(first.opening)} and then {_shown(again.opening)}",
                "let on_reset set every attribute that an episode changes",
            )
        elif (first.observations, first.rewards) != (second.observations, second.rewards):
            add(
                "the same seed, task and messages gave other observations or rewards the second time",
                "draw everything random with self.np_random: an episode that is interrupted is played again to where it was",
            )
        elif (first.observations, first.rewards) != (again.observations, again.rewards):
            add(
                "an environment that is reset and played again answers differently than the first time",
                "let on_reset set every attribute that an episode changes",
            )

    async def _play_the_rest(self, env: AsyncToolEnv, turn: int) -> bool:
        """Play from `turn` on what the first episode was too short for, in as many as it takes, up to one that answers."""
        tools = len(env.tool_env.tools)
        answer = tools + WRONG_CALLS if tools else 0
        while turn < answer:
            played = await self._play(env, turn)
            if played is None:
                return False
            turn += len(played.rewards)
        return turn > answer or await self._play(env, answer) is not None

    async def _play(self, env: AsyncToolEnv, first_turn: int = 0) -> _Played | None:
        """Play one episode to its end, with the replies from `first_turn` on. None: something is so wrong that nothing else can be said."""
        add = self.problems.add
        try:
            with anyio.fail_after(self.step_timeout_s):
                await env.reset(seed=self.seed, options=self.task)
        except Exception as error:
            if isinstance(error, TimeoutError):
                remedy = "bound every wait in on_reset, or raise step_timeout_s"
            elif ".on_reset returned" in str(error):
                remedy = "let on_reset return the text that opens the conversation, for every task"
            else:
                remedy = "on_reset must open every task of yours; pass tasks of the right form as check_env(env, tasks=[...])"
            add(f"reset with the task {_shown(self.task)} raised {_named(error)}", remedy)
            return None
        if not (self._check_messages("reset", env.messages, opening=True) and self._check_tools(env)):
            return None
        played = _Played(list(env.messages), [], [])
        for turn in range(first_turn, first_turn + self.max_steps):
            reply = exercising_reply(env.tool_env.tools, turn)
            message = as_message(reply, f"call-{turn}")
            before = len(env.messages) + 1
            try:
                with anyio.fail_after(self.step_timeout_s):
                    reward = await env.step(message)
            except BadRewardError as error:
                add(
                    f"the message {_shown(message)} earned no reward: {one_line(error, 300)}",
                    "return a finite number on every way through on_answer and the tools, or a Result",
                )
                return None
            except Exception as error:
                add(
                    f"the message {_shown(message)} made step raise {_named(error)}",
                    "mend it; a tool that means to refuse a call raises ToolCallError, and on_answer must return a reward for every text",
                )
                return None
            observation = env.messages[before:]
            if not self._check_messages("step", observation, opening=False):
                return None
            played.observations.append(observation)
            played.rewards.append(reward)
            if env.done:
                return played
        add(
            f"an episode did not end within {self.max_steps} messages",
            "set max_turns, or return Result(done=True) when it is over",
        )
        return None

    def _check_messages(self, method: str, messages: list[Any], *, opening: bool) -> bool:
        wrong = next((m for m in messages if not isinstance(m, dict) or m.get("role") not in _ROLES), None)
        if wrong is not None or (opening and not messages):
            self.problems.add(
                f"{method} returned {_shown(wrong if wrong is not None else messages)} among its messages",
                'return the text of the user, or messages such as {"role": "user", "content": "..."}; one at least opens an episode',
            )
            return False
        try:
            json.dumps(messages, allow_nan=False)
        except (TypeError, ValueError) as error:
            self.problems.add(
                f"{method} returned messages that are no JSON: {error}", "return text, or parts of a message"
            )
            return False
        return True

    def _check_tools(self, env: AsyncToolEnv) -> bool:
        add, known = self.problems.add, set[str]()
        before = len(self.problems.found)
        try:
            tools = env.tool_env.tools
        except Exception as error:
            add(
                f"its tools cannot be listed: {_named(error)}",
                "give every parameter of a tool a type that pydantic knows",
            )
            return False
        for tool in tools:
            function = tool["function"]
            name = str(function.get("name"))
            try:
                json.dumps(tool, allow_nan=False)
            except (TypeError, ValueError) as error:
                add(
                    f"the schema of the tool {name!r} is no JSON: {error}",
                    "give its parameters defaults that JSON can say",
                )
            if not _NAME.fullmatch(name):
                add(f"{name!r} is no name of a tool for OpenAI's API", "use 1 to 64 letters, digits, - and _")
            if name in known:
                add(f"two tools are named {name!r}", "give each tool a name of its own")
            if not function.get("description"):
                add(
                    f"the tool {name!r} has no description",
                    "write a docstring: it is what the model is told of the tool",
                )
            known.add(name)
        return len(self.problems.found) == before

    async def _check_gymnasium(self, env: AsyncToolEnv) -> None:
        """Let gymnasium's own checker look at an environment that is played through a `GymEnv`."""
        inner = env.tool_env
        if type(inner) is not GymEnv:
            return

        def check() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check_gymnasium_env(inner.inner.unwrapped, skip_render_check=True)

        try:
            await in_users_thread(check)
        except Exception as error:
            self.problems.add(
                f"gymnasium's check_env says: {one_line(error)}",
                "mend the environment as gymnasium's documentation says",
            )

    async def _close(self, env: AsyncToolEnv) -> None:
        """Close an environment, whatever becomes of the check."""
        with anyio.CancelScope(shield=True):
            before = anyio.current_time()
            try:
                await env.close()
            except Exception as error:
                self.problems.add(
                    f"closing it raised {_named(error)}",
                    "let aclose and close give back what there is, also when they are called after a fault",
                )
            if anyio.current_time() - before >= CLOSE_TIMEOUT_S:
                self.problems.add(
                    f"closing it took longer than {CLOSE_TIMEOUT_S:g} s, after which a run leaves it",
                    "bound every wait in aclose and close",
                )

    async def _check_leaks(self) -> None:
        before = await held_now()
        for number in range(ROUNDS):
            env = self.make()
            try:
                with anyio.fail_after(self.step_timeout_s):
                    await env.reset(seed=self.seed, options=self.task)
            except Exception as error:
                self.problems.add(
                    f"reset raised {_named(error)} where {number} others had been made and closed before",
                    "let aclose and close give back what on_reset has taken",
                )
                return
            finally:
                await self._close(env)
        for kind, names in (await held_now()).leaked_since(before, ROUNDS).items():
            self.problems.add(
                f"made and closed {ROUNDS} times, it leaves {kind} behind: {', '.join(names)}", REMEDIES[kind]
            )


def _shown(value: Any) -> str:
    return one_line(repr(value), 200)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error, 300)}"
