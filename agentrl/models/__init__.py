"""The nano model that ships with agentrl, for the quickstart and the tests."""

from pathlib import Path

NANO = Path(__file__).parent / "nano"
"""Qwen3 architecture and chat format, 0.9 M parameters, warm-started on the calculator. Made by `make nano-model`."""
