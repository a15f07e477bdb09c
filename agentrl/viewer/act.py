"""Acts on an episode that is shown, each asked for by a POST of the page itself, one at a time and bounded in time.

    fork    the prompt of a turn ─► an engine with the weights of a checkpoint ─► continuations beside the recorded reply
    score   the tokens of an episode ─► the model of a checkpoint, on the CPU ─► log p of each (`agentrl.viewer.score`)
    grade   the replies of an episode ─► its workflow again, without an engine ─► the reward that it earns now

They change nothing of the run. The engine is one of this process, with weights of its own: the first fork starts it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import anyio
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.config import RunConfig
from agentrl.engine.client import SGLangEngine
from agentrl.engine.launch import check_engine
from agentrl.engine.protocol import Sampling
from agentrl.errors import AgentRLError, UsageError
from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord, Turn
from agentrl.rollout.check_start import MAX_REPLY_TOKENS, with_model, with_roles
from agentrl.rollout.open_runner import open_engine
from agentrl.run.open_run import Run
from agentrl.run.replay import replay
from agentrl.store.database import files_at
from agentrl.store.read_episode import RunEpisode
from agentrl.system.event_loop import run_loop
from agentrl.system.tasks import Resources, in_thread, in_users_thread, open_resources
from agentrl.viewer.queries import ShownRun
from agentrl.viewer.transcript import reply_of

ACT_TIMEOUT_S = 600.0
"""Bound of one act, the start of the engine and the loading of weights included."""
MAX_CONTINUATIONS = 16


class ActBody(BaseModel):
    """The body of an act."""

    model_config = ConfigDict(extra="forbid")

    checkpoint: int | None = None
    """The step of a checkpoint that the run keeps; None: the model before training."""
    turn: Annotated[int, Field(ge=0)] = 0
    """Index of the turn that is forked."""
    count: Annotated[int, Field(ge=1, le=MAX_CONTINUATIONS)] = 4
    """How many continuations."""


def body_of(http: web.Request, body: bytes) -> ActBody:
    """Return what a request asks for.

    Raises:
        HTTPForbidden: It comes from another page: a browser sends JSON to another origin only where that allows it.
        UsageError: A field is unknown, or has no value that it may have.
    """
    origin, site = http.headers.get("Origin"), http.headers.get("Sec-Fetch-Site", "same-origin")
    is_own = site == "same-origin" and (origin is None or urlsplit(origin).netloc == http.host)
    if not is_own or http.content_type != "application/json":
        raise web.HTTPForbidden(text="only the page itself, or a program that sends application/json, may act")
    try:
        return ActBody.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@dataclass
class Acts:
    """The acts on the run that is shown, and the engine that they share."""

    _resources: Resources
    _busy: anyio.Lock = field(default_factory=anyio.Lock)

    async def act(self, kind: str, shown: ShownRun, episode_id: int, asked: ActBody) -> dict[str, Any]:
        """Do one act and return what came of it, as JSON values.

        Args:
            kind: "fork", "score" or "grade".
            shown: The run.
            episode_id: The episode.
            asked: The rest of it.

        Raises:
            UsageError: Another act goes on.
            AgentRLError: It cannot be done, or takes too long.
        """
        acts: dict[str, Callable[[ShownRun, RunEpisode, ActBody], Awaitable[dict[str, Any]]]]
        acts = {"fork": self._fork, "score": _score, "grade": _grade}
        if self._busy.locked():
            raise UsageError("another act goes on; ask again when it has ended")
        async with self._busy:
            episode = await in_thread(Run(shown.path).episode, episode_id)
            with anyio.move_on_after(ACT_TIMEOUT_S):
                return await acts[kind](shown, episode, asked)
            raise AgentRLError(f"it took longer than {ACT_TIMEOUT_S:g} s, and was ended")

    async def _fork(self, shown: ShownRun, episode: RunEpisode, asked: ActBody) -> dict[str, Any]:
        """Return continuations of the prompt of a turn, drawn from the policy's own distribution at the turn's temperature.

        Raises:
            UsageError: There is no such turn.
        """
        record, reader = await in_thread(lambda: (episode.record, shown.reader))
        if asked.turn >= len(record.turns):
            raise UsageError(f"turn: {asked.turn} is none of the {len(record.turns)} turns of the episode")
        turn, (config, weights) = record.turns[asked.turn], await in_thread(_weights, shown.path, asked.checkpoint)
        await in_thread(check_engine, config.engine)
        # A checkpoint of one adapter has it merged in; those of roles are put on the model that is served.
        open_it = partial(open_engine, config, training=bool(config.trainer.roles))
        # Another run may be at the path by now, with other weights under the same numbers.
        files = await in_thread(files_at, shown.path / "store.sqlite")
        engine = await self._resources.share((shown.path, files[0]), open_it)
        if engine.version != (asked.checkpoint or 0):
            await engine.update_weights(weights, asked.checkpoint or 0)
        path = turn.token_ids()
        prompt = path[: len(path) - len(turn.output_ids)]
        # A reply that was cut off says by its length what its request allowed.
        bound = len(turn.output_ids) if turn.truncated else config.rollout.max_tokens or MAX_REPLY_TOKENS
        room = (engine.context_length or len(prompt) + bound) - len(prompt)
        sampling = Sampling(
            max_new_tokens=min(bound, room),
            temperature=turn.temperature,
            stop_token_ids=reader.chat_format.stop_token_ids if reader else (),
        )
        generations = await _continuations(engine, turn, prompt, sampling, asked.count)

        def replies() -> list[dict[str, Any]]:
            turns = [TokenRecord().add("", None, prompt, one, turn.temperature) for one in generations]
            return [reply_of(one, reader, episode.source.text) for one in turns]

        return {"continuations": await in_thread(replies)}


@asynccontextmanager
async def open_acts() -> AsyncIterator[Acts]:
    """Yield what acts on a run; the engine ends with the context, if one was started."""
    async with open_resources() as resources:
        yield Acts(resources)


def _weights(run_dir: Path, step: int | None) -> tuple[RunConfig, Path]:
    """Return the configuration of a run with one engine of this machine in place of the run's own, and where the weights of a checkpoint are.

    Raises:
        UsageError: The run does not keep the checkpoint.
        ConfigError: Its model is not there any more.
    """
    run = Run(run_dir)
    config = with_roles(with_model(run.config), training=False)
    config = config.model_copy(update={"engine": config.engine.model_copy(update={"urls": [], "servers": 1})})
    kept = {None: Path(config.model.path)} | {one.step: one.path for one in run.checkpoints}
    if step not in kept:
        raise UsageError(f"checkpoint: {step} is not kept; the run keeps {', '.join(map(str, [*kept][1:])) or 'none'}")
    return config, kept[step]


async def _continuations(
    engine: SGLangEngine, turn: Turn, prompt: list[int], sampling: Sampling, count: int
) -> list[Generation]:
    """Return continuations of a prompt, sampled at the same time.

    Raises:
        EngineError: One of them failed.
    """
    generations: list[Generation] = []
    images = turn.path_images()

    async def one() -> None:
        generations.append(await engine.generate(prompt, sampling, "fork", images=images, adapter=turn.adapter))

    try:
        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(one)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return generations


async def _score(shown: ShownRun, episode: RunEpisode, asked: ActBody) -> dict[str, Any]:
    """Return log p of every sampled token of an episode under a checkpoint, by turn."""

    def scores() -> list[list[float | None]]:
        from agentrl.viewer.score import logprobs_under  # which imports torch

        config, weights = _weights(shown.path, asked.checkpoint)
        return logprobs_under(weights, episode.record, config.trainer.tokens_per_pack)

    return {"logprobs": await in_thread(scores, abandon_on_cancel=True)}


async def _grade(shown: ShownRun, episode: RunEpisode, asked: ActBody) -> dict[str, Any]:
    """Return what an episode earns when its workflow runs again on the recorded replies."""
    # In a loop of its own, as a workflow may block it: the page answers meanwhile.
    replayed = await in_users_thread(run_loop, lambda: replay(shown.path, episode.id))
    facts = {name: getattr(replayed.outcome, name) for name in ("reason", "reward", "metrics", "error")}
    details = json.loads(replayed.outcome.details or "null")
    return facts | {"details": details, "recorded": episode.reward, "unknown": replayed.unknown}
