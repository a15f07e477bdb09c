"""A discrete-event model of a run: controller, gate, workers, engine servers and trainer, each with what it costs.

    next task ─► gate ─► slot ─► [ worker ─► server ─► worker ─► main process ─► environment ] a turn ─► group ─► batch ─► trainer
                  ▲                                                                                                          │
                  └────────────────────────── version + 1 ◄── weights on every node ◄── pause ◄─────────────────────────────┘

The gate is the product's own. Everything that computes is a station on a node with so many cores; stations of a node that compute at
the same time share its cores evenly. A main process, a worker and a trainer do one thing after the other; a server makes all its replies
together, each token of each in `step_s + reply_step_s · replies` seconds.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agentrl.rollout.gate import StalenessGate

Then = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of one core, unless something else is said. `scale_simulation.py --measure` measures them."""

    main_episode_s: float
    """The main process, for an episode: handed out, its outcome stored, its group's end."""
    main_call_s: float
    """The main process, for a call that it keeps."""
    worker_call_s: float
    """A proxy and the workflow, for a call."""
    worker_token_s: float
    """The same, for each token of the reply."""
    step_s: float
    """A server's decoding step."""
    reply_step_s: float
    """The same, for each reply in it."""
    prompt_token_s: float
    """A server, for each prompt token that no cache holds."""
    train_step_s: float
    """The trainer, for a step."""
    train_token_s: float
    """The same, for each token."""
    pause_s: float
    """How long servers stand still for new weights (wall clock)."""
    spread_s: float = 0.0
    """From the trainer's last gradient to the weights on every node, before the pause (wall clock)."""


@dataclass(frozen=True)
class Turn:
    """One call of the model, and what the environment takes after it."""

    prompt_tokens: int
    """New ones: those that no cache holds."""
    output_tokens: int
    wait_s: float


Workload = Callable[[random.Random], Sequence[Turn]]
"""Draws an episode."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The size of a run, by its settings' names."""

    batch_size: int
    group_size: int
    max_staleness: int
    max_concurrent: int
    window: int | None = None
    steps: int = 10
    servers: int = 1
    max_replies: int = 1 << 30
    """Replies that a server makes at the same time; more of them wait."""
    workers: int = 0
    """0: the main process runs the workflows itself."""
    trainers: int = 1
    """Ranks, which share a step's tokens."""
    cores: int | None = None
    """Of the one machine that all of it runs on; None: everything has a core, or a GPU, of its own."""


@dataclass
class Result:
    """What came of a simulated run, by step."""

    step_s: list[float] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    train_s: list[float] = field(default_factory=list)
    staleness: list[float] = field(default_factory=list)
    """Mean staleness of a batch's tokens, each as old as the version at which its reply began."""
    episodes: list[int] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)
    """Of the episodes that ended."""
    busy: dict[str, float] = field(default_factory=dict)
    """By kind of station: the share of the time in which one of them computes, after the first step."""

    def episodes_per_s(self, skip: int = 1) -> float:
        """Throughput after the first `skip` steps, which fill the pipeline."""
        return sum(self.episodes[skip:]) / sum(self.step_s[skip:])

    def mean_staleness(self, skip: int = 1) -> float:
        """The mean over the steps after the first `skip`."""
        return sum(self.staleness[skip:]) / len(self.staleness[skip:])


class Station(Protocol):
    """Something that computes."""

    kind: str
    node: Node
    stamp: int
    """Of the end that is expected: an event of an older stamp is void."""
    since: float
    """When `advance` was called last."""
    computed_s: float

    def remaining(self) -> float | None:
        """Return the core seconds to its next completion; None: it is idle."""

    def advance(self, work_s: float) -> None:
        """Compute for so long."""

    def complete(self) -> None:
        """Do what follows from the completion that is reached."""


class Node:
    """Cores that stations share."""

    def __init__(self, simulation: Simulation, cores: float) -> None:
        self.stations: list[Station] = []
        self._simulation = simulation
        self._cores = cores
        self._speed = 1.0

    def settle(self, station: Station) -> None:
        """Bring up to date what has been computed: for the station, or for all that share its cores."""
        now = self._simulation.now
        for one in self.stations if len(self.stations) > self._cores else (station,):
            done_s = (now - one.since) * self._speed
            if one.remaining() is not None:
                one.advance(done_s)
                one.computed_s += done_s
            one.since = now

    def schedule(self, station: Station) -> None:
        """Expect the next completion, after something has changed at the station."""
        if len(self.stations) <= self._cores:
            self._expect(station)
            return
        active = sum(one.remaining() is not None for one in self.stations)
        self._speed = min(1.0, self._cores / max(1, active))
        for one in self.stations:
            self._expect(one)

    def _expect(self, station: Station) -> None:
        station.stamp += 1
        remaining = station.remaining()
        if remaining is None:
            return
        stamp = station.stamp

        def reached() -> None:
            if station.stamp == stamp:
                self.settle(station)
                station.complete()
                self.schedule(station)

        self._simulation.after(max(0.0, remaining) / self._speed, reached)


class Fifo:
    """A process with one thread of control: one thing after the other."""

    def __init__(self, kind: str, node: Node) -> None:
        self.kind, self.node, self.stamp, self.since, self.computed_s = kind, node, 0, 0.0, 0.0
        self._queue: deque[tuple[float, Then]] = deque()
        self._left_s = 0.0
        node.stations.append(self)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def do(self, cost_s: float, then: Then) -> None:
        """Queue some work, and what follows it."""
        self.node.settle(self)
        self._queue.append((cost_s, then))
        if len(self._queue) == 1:
            self._left_s = cost_s
            self.node.schedule(self)

    def remaining(self) -> float | None:
        return self._left_s if self._queue else None

    def advance(self, work_s: float) -> None:
        self._left_s -= work_s

    def complete(self) -> None:
        _, then = self._queue.popleft()
        if self._queue:
            self._left_s = self._queue[0][0]
        then()


class Server:
    """An engine server: all its replies grow together, and stand still while a prompt is read."""

    def __init__(self, node: Node, costs: Costs, max_replies: int) -> None:
        self.kind, self.node, self.stamp, self.since, self.computed_s = "server", node, 0, 0.0, 0.0
        self._costs, self._max_replies = costs, max_replies
        self._grown = 0.0
        """Tokens that a reply has which has been here from the beginning."""
        self._ends: list[tuple[float, int, Then]] = []
        self._queue: deque[tuple[Turn, Then]] = deque()
        self._reading_s = 0.0
        self._numbers = itertools.count()
        self._paused = False
        node.stations.append(self)

    @property
    def load(self) -> int:
        return len(self._ends) + len(self._queue)

    def generate(self, turn: Turn, then: Then) -> None:
        """Make a reply, and then do what follows it."""
        self.node.settle(self)
        self._queue.append((turn, then))
        self._admit()
        self.node.schedule(self)

    def pause(self, paused: bool) -> None:
        """Stand still, or go on."""
        self.node.settle(self)
        self._paused = paused
        self.node.schedule(self)

    def _admit(self) -> None:
        while self._queue and len(self._ends) < self._max_replies:
            turn, then = self._queue.popleft()
            self._reading_s += turn.prompt_tokens * self._costs.prompt_token_s
            heapq.heappush(self._ends, (self._grown + turn.output_tokens, next(self._numbers), then))

    def _token_s(self) -> float:
        return self._costs.step_s + self._costs.reply_step_s * len(self._ends)

    def remaining(self) -> float | None:
        if self._paused or not self._ends:
            return None
        return self._reading_s + (self._ends[0][0] - self._grown) * self._token_s()

    def advance(self, work_s: float) -> None:
        read_s = min(work_s, self._reading_s)
        self._reading_s -= read_s
        self._grown += (work_s - read_s) / self._token_s()

    def complete(self) -> None:
        end, _, then = heapq.heappop(self._ends)
        self._grown = max(self._grown, end)
        self._admit()
        then()


@dataclass(eq=False)
class _Group:
    id: int
    left: int
    tokens: int = 0
    versions: int = 0
    """The sum over its tokens of the version at which their reply began."""


@dataclass(eq=False, slots=True)
class _Episode:
    """One that runs. What follows what is a method each: no closure refers to another, so it is freed when it has ended."""

    simulation: Simulation
    group: _Group
    worker: Fifo
    turns: Sequence[Turn]
    server: Server | None = None
    index: int = 0
    began: float = 0.0
    version: int = 0
    """That of the weights at which the reply begins."""

    def begin(self) -> None:
        self.began, self.server = self.simulation.now, self.simulation.server()
        self.ask()

    def ask(self) -> None:
        if self.index < len(self.turns):
            self.worker.do(self.simulation.costs.worker_call_s / 2, self.generate)
        else:
            self.simulation.main.do(self.simulation.costs.main_episode_s / 2, self.end)

    def generate(self) -> None:
        assert self.server is not None
        self.version = self.simulation.gate.version
        self.server.generate(self.turns[self.index], self.replied)

    def replied(self) -> None:
        tokens, costs = self.turns[self.index].output_tokens, self.simulation.costs
        self.group.tokens += tokens
        self.group.versions += tokens * self.version
        self.worker.do(costs.worker_call_s / 2 + costs.worker_token_s * tokens, self.keep)

    def keep(self) -> None:
        self.simulation.main.do(self.simulation.costs.main_call_s, self.act)

    def act(self) -> None:
        wait_s = self.turns[self.index].wait_s
        self.index += 1
        self.simulation.after(wait_s, self.ask)

    def end(self) -> None:
        self.simulation.end_episode(self.group, self.began)


class Simulation:
    """One run of a setup."""

    def __init__(self, setup: Setup, costs: Costs, workload: Workload, seed: int = 0) -> None:
        self.now = 0.0
        self._setup, self.costs, self._workload = setup, costs, workload
        self._rng = random.Random(seed)
        self._events: list[tuple[float, int, Then]] = []
        self._numbers = itertools.count()
        shared = None if setup.cores is None else Node(self, setup.cores)

        def node() -> Node:
            return shared or Node(self, math.inf)

        self.main = Fifo("main", node())
        self._servers = [Server(node(), costs, setup.max_replies) for _ in range(setup.servers)]
        self._workers = [Fifo("worker", node()) for _ in range(setup.workers)] or [self.main]
        self._trainer = Fifo("trainer", node())
        self.gate = StalenessGate(
            groups_per_batch=setup.batch_size // setup.group_size,
            max_staleness=setup.max_staleness,
            window=setup.window,
        )
        self._groups: dict[int, _Group] = {}
        self._group_ids = itertools.count(1)
        self._waiting: deque[_Group] = deque()
        self._running = 0
        self._training = False
        self._step_began = self._waited_since = 0.0
        self._computed_before: dict[str, float] = {}
        self._measured_from = 0.0
        self.result = Result()

    def after(self, delay_s: float, then: Then) -> None:
        """Do something later."""
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), then))

    def run(self) -> Result:
        """Simulate the run to its last step."""
        self._start_groups()
        while len(self.result.step_s) < self._setup.steps:
            self.now, _, then = heapq.heappop(self._events)
            then()
        wall_s = self.now - self._measured_from
        count = {"main": 1, "server": len(self._servers), "worker": len(self._workers), "trainer": 1}
        for kind, computed_s in self._computed().items():
            self.result.busy[kind] = (computed_s - self._computed_before.get(kind, 0.0)) / wall_s / count[kind]
        return self.result

    def _computed(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        stations: list[Station] = [self.main, *self._servers, *self._workers, self._trainer]
        for one in {id(station): station for station in stations}.values():
            sums[one.kind] = sums.get(one.kind, 0.0) + one.computed_s
        return sums

    def _start_groups(self) -> None:
        size = self._setup.group_size
        while self.gate.can_start() and len(self._waiting) + self._running < self._setup.max_concurrent:
            group = _Group(next(self._group_ids), size)
            self._groups[group.id] = group
            self.gate.start(group.id)
            self._waiting.extend([group] * size)
            self._fill_slots()

    def _fill_slots(self) -> None:
        while self._waiting and self._running < self._setup.max_concurrent:
            group = self._waiting.popleft()
            self._running += 1
            worker = self._workers[self._rng.randrange(len(self._workers))]
            episode = _Episode(self, group, worker, self._workload(self._rng))
            self.main.do(self.costs.main_episode_s / 2, episode.begin)

    def server(self) -> Server:
        """The less busy one of two, as a router knows them that does not ask all."""
        one, two = (self._servers[self._rng.randrange(len(self._servers))] for _ in range(2))
        return one if one.load <= two.load else two

    def end_episode(self, group: _Group, began: float) -> None:
        """Free its slot, and perhaps complete its group and a batch."""
        self.result.durations_s.append(self.now - began)
        self._running -= 1
        group.left -= 1
        if not group.left:
            self.gate.finish(group.id)
        self._fill_slots()
        self._start_groups()
        self._train()

    def _train(self) -> None:
        if self._training or (taken := self.gate.take()) is None:
            return
        self._training = True
        waited_s = self.now - self._waited_since
        groups = [self._groups.pop(group) for group in taken]
        tokens = sum(group.tokens for group in groups)
        version = self.gate.version
        staleness = version - sum(group.versions for group in groups) / max(1, tokens)
        began = self.now

        def trained() -> None:
            self.result.train_s.append(self.now - began)
            self.after(self.costs.spread_s, pause)

        def pause() -> None:
            for server in self._servers:
                server.pause(True)
            self.after(self.costs.pause_s, resumed)

        def resumed() -> None:
            for server in self._servers:
                server.pause(False)
            result = self.result
            result.wait_s.append(waited_s)
            result.step_s.append(self.now - self._step_began)
            result.staleness.append(staleness)
            result.episodes.append(len(groups) * self._setup.group_size)
            if len(result.step_s) == 1:
                self._measured_from, self._computed_before = self.now, self._computed()
            self._step_began = self._waited_since = self.now
            self._training = False
            self.gate.advance()
            self._start_groups()
            self._train()

        cost_s = self.costs.train_step_s + self.costs.train_token_s * tokens / self._setup.trainers
        self._trainer.do(cost_s, trained)
