"""Check that the packages which agentrl's extras bring are installed."""

from __future__ import annotations

from importlib.util import find_spec

from agentrl.errors import ConfigError

PACKAGES = {"train": "torch transformers safetensors numpy", "lora": "peft", "url": "fsspec", "cluster": "ray"}
"""An extra of pyproject.toml -> the packages that are imported of it."""


def check_extra(extra: str, needed_by: str) -> None:
    """Check that the packages of an extra can be imported.

    Args:
        extra: A key of `PACKAGES`.
        needed_by: What cannot be done without them.

    Raises:
        ConfigError: One is missing. The message says how to install it.
    """
    for package in PACKAGES[extra].split():
        if find_spec(package) is None:
            raise ConfigError(f"{needed_by} needs {package}: pip install -e '/path/to/agentrl[{extra}]'")
