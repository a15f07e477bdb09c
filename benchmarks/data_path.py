"""What one model call costs on its way from a request to the disk: `python benchmarks/data_path.py`.

Conversations of `--generated` tokens a reply and a user message of about 60 tokens a turn, answered at once by an engine without
a model, whose ids and logprobs are random, so that they compress no better than real ones:

    proxy   CPU of `Proxy.handle` at turns 1, 10 and 50 of a conversation (all threads of this process), without and with a call log;
            the call log's share is what it takes to keep the reply
    store   an episode of 1, 10 and 50 turns: each call committed on its own, then the episode. CPU of both; bytes of the database
            an episode when all have ended; bytes that were written to its write-ahead log

To compare two trees, run it in each in turn, `--json` for programs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import struct
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from agentrl.engine.protocol import OnProgress, PauseMode, Sampling
from agentrl.models import NANO
from agentrl.proxy import Proxy, Session, load_chat_format, open_proxy
from agentrl.record.end_reason import EndReason
from agentrl.record.recorded_choice import recorded_choices
from agentrl.record.tokens import Generation, ImageSpan, VersionSpan
from agentrl.store.call_log import open_call_log
from agentrl.store.changes import InsertCall, InsertEpisode
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store

TURNS = (1, 10, 50)
USER = "State the final answer to the following arithmetic problem: 12 + 30 = {}"
STOP = 2


class RandomEngine:
    """Answers at once with random digits and random logprobs, as float32 as engines report them."""

    version = 0
    has_grammar = False
    takes_images = False
    vocabulary = None
    context_length = None

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._random = random.Random(0)

    async def generate(
        self,
        input_ids: list[int],
        sampling: Sampling,
        session: str,
        on_progress: OnProgress | None = None,
        *,
        images: Sequence[ImageSpan] = (),
        adapter: str = "",
    ) -> Generation:
        count = self._tokens
        ids = [self._random.randrange(24, 34) for _ in range(count - 1)] + [STOP]
        logprobs = struct.unpack(f"{count}f", struct.pack(f"{count}f", *(-self._random.random() for _ in ids)))
        return Generation(output_ids=ids, logprobs=list(logprobs), versions=[VersionSpan(0, 0, count)], finish="stop")

    def end_session(self, session: str) -> None:
        pass

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        return 0.0

    async def pause(self, mode: PauseMode) -> None:
        pass

    async def resume(self) -> None:
        pass

    async def health(self) -> None:
        pass


async def converse(proxy: Proxy, session: Session, turns: int) -> list[float]:
    """One conversation; the CPU seconds of each of its calls."""
    messages: list[Any] = []
    used = []
    headers = {"authorization": f"Bearer {session.key}"}
    for turn in range(turns):
        messages.append({"role": "user", "content": USER.format(turn)})
        body = json.dumps({"model": "nano", "messages": messages}).encode()
        started = time.process_time()
        reply = await proxy.handle("POST", "/v1/chat/completions", headers, body)
        used.append(time.process_time() - started)
        if reply.status != 200:
            raise RuntimeError(reply.body)
        messages.append(json.loads(reply.body)["choices"][0]["message"])
    return used


async def proxy_ms(proxy: Proxy, rounds: int, store: Store | None = None) -> dict[int, float]:
    """Median CPU milliseconds of a call, by its turn."""
    samples: dict[int, list[float]] = {turn: [] for turn in TURNS}

    async def run(call_logs: Any = None) -> None:
        for number in range(-1, rounds):  # the first warms up
            if store is not None:
                store.open_group(number + 1, 0, number + 1)
            session = proxy.open_session(call_log=call_logs.episode(number + 1, 0) if call_logs else None)
            used = await converse(proxy, session, max(TURNS))
            proxy.close_session(session)
            for turn in TURNS:
                if number >= 0:
                    samples[turn].append(used[turn - 1])

    if store is None:
        await run()
    else:
        async with open_call_log(store) as call_logs:
            await run(call_logs)
    return {turn: 1000 * statistics.median(values) for turn, values in samples.items()}


async def store_costs(proxy: Proxy, turns: int, episodes: int, folder: Path) -> dict[str, float]:
    """CPU and bytes of an episode in the store."""
    sessions = []
    for _ in range(episodes):
        session = proxy.open_session()
        await converse(proxy, session, turns)
        proxy.close_session(session)
        sessions.append(session)
    path = folder / f"{turns}.sqlite"
    with Store(path) as store:
        store.begin_restart()
        store._db.execute("PRAGMA wal_autocheckpoint = 0")
        for group in range(episodes):
            store.open_group(group, 0, group)
        store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        before, calls_s, episode_s = path.stat().st_size, 0.0, 0.0
        for group, session in enumerate(sessions):
            choices = recorded_choices(session.record)
            started = time.process_time()
            for choice in choices:
                store.write([InsertCall(group, 0, choice)])
            calls_s += time.process_time() - started
            outcome = Outcome(status=EndReason.FINISHED, reward=float(group % 2), record=session.record)
            ended = InsertEpisode(group, 0, 0, outcome, {choice.key for choice in choices})
            started = time.process_time()
            store.write([ended])
            episode_s += time.process_time() - started
        written = path.with_name(path.name + "-wal").stat().st_size
        started = time.process_time()
        store.episodes(list(range(episodes)))
        read_s = time.process_time() - started
        store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages, free, size = (
            store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return {
        "calls_ms": 1000 * calls_s / episodes,
        "episode_ms": 1000 * episode_s / episodes,
        "read_ms": 1000 * read_s / episodes,
        "stored_bytes": ((pages - free) * size - before) / episodes,
        "written_bytes": written / episodes,
    }


async def main(rounds: int, generated: int, as_json: bool) -> None:
    """Measure, and print."""
    chat_format = replace(load_chat_format(NANO), context_length=2**17)
    with tempfile.TemporaryDirectory(prefix="agentrl-data-path-") as scratch:
        async with open_proxy(RandomEngine(generated), chat_format, "nano") as proxy:
            found: dict[str, Any] = {"proxy_ms": await proxy_ms(proxy, rounds)}
            with Store(Path(scratch) / "calls.sqlite") as store:
                store.begin_restart()
                found["proxy_with_call_log_ms"] = await proxy_ms(proxy, rounds, store)
            found["store"] = {turns: await store_costs(proxy, turns, max(10, rounds), Path(scratch)) for turns in TURNS}
    if as_json:
        print(json.dumps(found))
        return
    print(f"{'turn':>6} {'proxy ms':>9} {'with call log':>14}")
    for turn in TURNS:
        print(f"{turn:>6} {found['proxy_ms'][turn]:>9.2f} {found['proxy_with_call_log_ms'][turn]:>14.2f}")
    print(f"{'turns':>6} {'calls ms':>9} {'episode ms':>11} {'read ms':>8} {'stored kB':>10} {'written kB':>11}")
    for turns, costs in found["store"].items():
        print(
            f"{turns:>6} {costs['calls_ms']:>9.2f} {costs['episode_ms']:>11.2f} {costs['read_ms']:>8.2f} "
            f"{costs['stored_bytes'] / 1000:>10.1f} {costs['written_bytes'] / 1000:>11.1f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="conversations of each measurement")
    parser.add_argument("--generated", type=int, default=128, help="tokens of a reply")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    args = parser.parse_args()
    anyio.run(main, args.rounds, args.generated, args.json)
