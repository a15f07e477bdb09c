"""`Rubric`: a reward put together from weighted functions, each of which is a metric of its own."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from traceback import walk_tb
from typing import Any, Generic, ParamSpec

import anyio

from agentrl.errors import BadRewardError, RewardFunctionError, WorkflowError
from agentrl.reward import MAX_METRIC, Reward, checked_number
from agentrl.system.failure_text import place_of
from agentrl.system.tasks import in_users_thread

P = ParamSpec("P")


class Rubric(Generic[P]):
    """The weighted sum of reward functions: reward = Σ weight · function(episode, ...).

        async def correct(episode: Episode, answer: str) -> float: ...
        def brief(episode: Episode, answer: str) -> float: ...

        rubric = Rubric([correct, brief], weights=[1.0, 0.1])

        async def run(episode: Episode) -> Reward:
            answer = ...
            return await rubric(episode, answer)

    The functions take the same arguments. Async ones run at the same time; plain ones run in threads and may block. What each
    returns is a metric under the function's name, before its weight; a weight of 0 makes it nothing but a metric.

    Args:
        functions: The reward functions; their names must differ.
        weights: One for each function. Default: 1 for all.

    Raises:
        WorkflowError: There are no functions, not as many weights as functions, or a function without a name of its own.
    """

    def __init__(
        self,
        functions: Sequence[Callable[P, float | Awaitable[float]]],
        weights: Sequence[float] | None = None,
    ) -> None:
        names = [_name(function) for function in functions]
        self._functions = dict(zip(names, functions, strict=True))
        if not functions:
            raise WorkflowError("a rubric needs a reward function; write Rubric([function, ...])")
        if len(self._functions) < len(functions):
            twice = next(name for name in names if names.count(name) > 1)
            raise WorkflowError(f"two reward functions of a rubric are named {twice!r}; give each metric its own name")
        weights = [1.0] * len(functions) if weights is None else weights
        if len(weights) != len(functions):
            have = f"the rubric has reward functions {list(self._functions)}: give one for each"
            raise WorkflowError(f"weights has {len(weights)} numbers, and {have}")
        self.weights = {
            name: checked_number(f"the weight of {name}", weight, MAX_METRIC)
            for name, weight in zip(self._functions, weights, strict=True)
        }

    def __repr__(self) -> str:
        return f"Rubric({' + '.join(f'{weight:g} · {name}' for name, weight in self.weights.items())})"

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Reward:
        """Return the reward, with what every function returned as its metric.

        Raises:
            RewardFunctionError: A function raised, or returned what is no finite number. The message names it.
        """
        values: dict[str, float] = {}
        failures: list[RewardFunctionError] = []

        async def call(name: str, function: Callable[P, Any]) -> None:
            try:
                returned = await _returned(function, *args, **kwargs)
                values[name] = checked_number("what it returned", returned, MAX_METRIC)
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                if not isinstance(error, BadRewardError):
                    what += f" (at {place_of([frame for frame, _ in walk_tb(error.__traceback__)])})"
                failure = RewardFunctionError(f"the reward function {name} failed: {what}")
                failure.__cause__ = error
                failures.append(failure)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for name, function in self._functions.items():
                group.start_soon(call, name, function)
        if failures:
            raise failures[0]
        metrics = {name: values[name] for name in self._functions}
        return Reward(sum(self.weights[name] * value for name, value in metrics.items()), metrics)


async def _returned(function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    returned = await in_users_thread(lambda: function(*args, **kwargs))
    return await returned if isinstance(returned, Awaitable) else returned


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None) or getattr(type(function), "__name__", "")
    if name in ("<lambda>", "partial"):
        raise WorkflowError(f"the reward function {function!r} has no name for its metric; write it with def")
    return str(name)
