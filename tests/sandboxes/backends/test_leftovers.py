"""Whose a container is that a process has left behind."""

from __future__ import annotations

from agentrl.sandboxes.backends.leftovers import is_dead, owner


def test_the_dead_are_told_from_the_living() -> None:
    host, boot, *_ = owner().split(":")
    assert is_dead(f"{host}:{boot}:999999999:1")
    assert not is_dead(owner())


def test_a_machine_of_the_same_name_is_not_taken_for_dead() -> None:
    host, _, pid, started = owner().split(":")
    other = f"{host}:another-boot:{pid}:{started}"
    assert is_dead(other)
    assert not is_dead(other, same_boot=True)
