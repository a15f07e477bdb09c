"""The staleness gate: the bound that docs/staleness.md derives holds on random episode times, failures and rejections."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentrl.rollout.gate import StalenessGate


@dataclass
class Simulated:
    """What a simulated run did."""

    staleness: list[list[int]]
    """Of every group, batch by batch: trainer's version at training − version at the group's start."""
    ids: list[list[int]]
    stuck: bool


def simulate(
    gate: StalenessGate,
    *,
    batches: int,
    slots: int,
    seed: int,
    long_share: float,
    rejected_share: float,
    train_s: float,
    crash_share: float = 0.0,
    restart: Callable[[int], StalenessGate] | None = None,
) -> Simulated:
    """Event-driven run of groups of random duration against a trainer that takes `train_s` a batch.

    After a share `crash_share` of the batches the run is killed. `restart` makes the gate that begins again at the last checkpoint, of every
    third version; groups that are in no checkpoint come again, as they ended or to be finished.
    """
    rng = random.Random(seed)
    clock, next_id, trainer_free_at = 0.0, 0, 0.0
    ends: list[tuple[float, int]] = []
    started_under: dict[int, int] = {}
    ready: set[int] = set()
    taken: set[int] = set()
    pending: list[int] = []
    """Groups of before a crash, which the gate does not know of yet: from the oldest one on that no checkpoint contains."""
    done = Simulated([], [], stuck=False)
    training: list[int] | None = None
    while len(done.ids) < batches:
        while gate.can_start() and (pending or len(ends) < slots):
            group = pending.pop(0) if pending else next_id
            next_id = max(next_id, group + 1)
            if group in taken:
                gate.start_taken(group)
                continue
            gate.start(group)
            if group in ready:
                gate.finish(group)
            else:
                started_under[group] = min(gate.version, started_under.get(group, gate.version))
                duration = rng.uniform(20, 60) if rng.random() < long_share else rng.uniform(0.5, 2)
                heapq.heappush(ends, (clock + duration, group))
        if training is None and (training := gate.take()) is not None:
            trainer_free_at = clock + train_s
            done.ids.append(training)
            done.staleness.append([gate.version - started_under[g] for g in training])
        if training is not None and (not ends or trainer_free_at <= ends[0][0]):
            clock, training = trainer_free_at, None
            gate.advance()
            if restart is not None and rng.random() < crash_share:
                checkpoint = gate.version - gate.version % 3
                trained_again = [group for batch in done.ids[checkpoint:] for group in batch]
                del done.ids[checkpoint:], done.staleness[checkpoint:]
                taken.clear()
                taken.update(group for batch in done.ids for group in batch)
                unused = {*trained_again, *ready, *(group for _, group in ends), *pending} - taken
                pending = sorted(unused | {group for group in taken if group > min(unused, default=next_id)})
                gate, ends, crash_share = restart(checkpoint), [], crash_share / 2
        elif ends:
            clock, group = heapq.heappop(ends)
            if rng.random() < rejected_share:
                gate.reject(group)
            else:
                gate.finish(group)
                ready.add(group)
        else:
            done.stuck = True
            break
    return done


RUNS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "slots": st.integers(1, 40),
        "long_share": st.sampled_from([0.0, 0.05, 0.3]),
        "rejected_share": st.sampled_from([0.0, 0.2, 0.7]),
        "train_s": st.sampled_from([0.1, 3.0, 30.0]),
        "crash_share": st.sampled_from([0.0, 0.1, 0.5]),
    }
)


@given(groups=st.integers(1, 8), eta=st.integers(0, 4), window=st.integers(1, 30), run=RUNS)
def test_no_group_is_staler_than_the_bound_and_none_is_taken_twice(
    groups: int, eta: int, window: int, run: dict[str, Any]
) -> None:
    """Also where it is killed, and goes on from its last checkpoint."""

    def gate_from(version: int) -> StalenessGate:
        return StalenessGate(groups_per_batch=groups, max_staleness=eta, window=window, version=version)

    gate = gate_from(0)
    done = simulate(gate, batches=12, restart=gate_from, **run)

    assert not done.stuck
    taken = [group for batch in done.ids for group in batch]
    assert len(taken) == len(set(taken))
    assert all(len(batch) == groups for batch in done.ids)
    assert max(lag for batch in done.staleness for lag in batch) <= gate.bound


@dataclass
class Defined:
    """Which groups a batch takes, word for word as docs/staleness.md defines it."""

    batch: int
    reach: int
    states: list[list[Any]]
    """[id, "running" | "finished" | "taken"] of each group, in the order of their start."""

    def take(self) -> list[int] | None:
        """Take finished groups one by one, each the oldest among the W that begin with the oldest not taken."""
        states = [list(group) for group in self.states]
        taken = []
        while len(taken) < self.batch:
            begin = next((i for i, (_, state) in enumerate(states) if state != "taken"), 0)
            window = states[begin : begin + self.reach]
            found = next((group for group in window if group[1] == "finished"), None)
            if found is None:
                return None
            found[1] = "taken"
            taken.append(found[0])
        self.states = states
        return taken


@given(
    data=st.data(), batch=st.integers(1, 6), eta=st.integers(0, 4), window=st.integers(1, 12), first=st.integers(0, 7)
)
def test_a_batch_and_when_a_group_may_start_are_what_the_definition_says(
    data: st.DataObject, batch: int, eta: int, window: int, first: int
) -> None:
    """Also of a run that goes on at version `first`."""
    gate = StalenessGate(groups_per_batch=batch, max_staleness=eta, window=window, version=first)
    defined = Defined(batch, window, [])
    for number in range(data.draw(st.integers(0, 80), "events")):
        assert gate.can_start() == (len(defined.states) < (gate.version - first + eta + 1) * batch)
        running = [group for group, state in defined.states if state == "running"]
        events = [*(["start"] * gate.can_start()), *(["finish", "finish", "reject"] if running else []), "take"]
        event = data.draw(st.sampled_from(events), "event")
        if event == "start":
            gate.start(number)
            defined.states.append([number, "running"])
        elif event == "take":
            taken = defined.take()
            assert gate.take() == taken
            if taken is not None:
                gate.advance()
        else:
            group = data.draw(st.sampled_from(running), "group")
            getattr(gate, event)(group)
            if event == "finish":
                next(state for state in defined.states if state[0] == group)[1] = "finished"
            else:
                defined.states = [state for state in defined.states if state[0] != group]
    rest = [group for group, state in defined.states if state == "finished"]
    assert gate.take_rest() == rest[:batch]


def test_the_window_bound_is_reached() -> None:
    """η + ⌈(W−1)/G⌉ is not merely safe: a slow oldest group attains it."""
    gate = StalenessGate(groups_per_batch=2, max_staleness=1, window=4)
    for group in range(4):
        gate.start(group)
    assert not gate.can_start()
    for group in (1, 2):
        gate.finish(group)
    assert gate.take() == [1, 2]
    gate.advance()
    for group in (4, 5):
        gate.start(group)
    gate.finish(3)
    gate.finish(4)
    assert gate.take() is None, "group 4 lies outside the window of 4 that the oldest, 0, holds in place"
    gate.finish(0)
    assert gate.take() == [0, 3]
    assert gate.bound == 3
