"""The loggers of agentrl's modules: a handler that fails, which may be a workflow's, fails nothing but its line."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any


class _Logger(logging.LoggerAdapter[logging.Logger]):
    def log(self, level: int, msg: object, *args: object, stacklevel: int = 1, **options: Any) -> None:
        with suppress(Exception):
            super().log(level, msg, *args, stacklevel=stacklevel + 1, **options)


def logger(module: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return the logger of a module, by its `__name__`. Logging with it raises nothing."""
    return _Logger(logging.getLogger(module), {})
