"""Say what is wrong where `await` was forgotten: a coroutine that is used as if it were its result."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Awaitable(Coroutine[Any, Any, T]):
    """A coroutine whose every other attribute says that it must be awaited."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], example: str) -> None:
        self._coroutine = coroutine
        self._example = example

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        error = value if isinstance(value, BaseException) else kind
        return self._coroutine.throw(error)

    def close(self) -> None:
        self._coroutine.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("cr_", "__")):  # what debuggers and asyncio ask of a coroutine
            return getattr(self._coroutine, name)
        raise AttributeError(f"there is no result yet to take {name!r} from; an await is missing: {self._example}")

    def _no_result(self, *_: object) -> NoReturn:
        raise TypeError(f"there is no result yet; an await is missing: {self._example}")

    __bool__ = __float__ = __iter__ = __len__ = __getitem__ = __enter__ = __aenter__ = _no_result

    def __repr__(self) -> str:
        return f"<not awaited: {self._example}>"


def says_await(example: str) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Return a decorator for async functions: who uses the coroutine as if it were the result is shown `example`, a line that awaits it.

    An attribute of the coroutine raises AttributeError, its truth, length, items and number TypeError.
    """

    def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
            return _Awaitable(function(*args, **kwargs), example)

        return call

    return decorate
