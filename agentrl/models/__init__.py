"""The nano models that ship with agentrl, for the quickstart, the tutorial and the tests."""

from pathlib import Path

NANO = Path(__file__).parent / "nano"
"""Qwen3 architecture and chat format, 0.9 M parameters, warm-started on the calculator. Made by `make nano-model`."""
NANO_PLAYER = Path(__file__).parent / "nano_player"
"""The same, warm-started on random play of FrozenLake and Blackjack. Made by `make nano-player`."""


def model_directory(path: str) -> str:
    """The directory of a model that ships with agentrl, by its name; any other, whole, as the working directory may change."""
    shipped = {"nano": NANO, "nano_player": NANO_PLAYER}.get(path)
    return str(shipped or (Path(path).absolute() if path and Path(path).is_dir() else path))
