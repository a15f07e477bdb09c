"""Run one episode: a session, an `Episode`, the workflow within its bounds, and what came of it."""

from __future__ import annotations

import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Literal, Protocol

import anyio
import httpx2
from anyio.to_thread import run_sync as in_thread
from openai import AsyncOpenAI

from agentrl.config import RunConfig
from agentrl.episode import Episode, Reward, RunSandboxes, Task
from agentrl.errors import EpisodeTimeoutError, NoModelCallError
from agentrl.proxy import Journal, Proxy, SamplingDefaults
from agentrl.resources import Resources, open_resources
from agentrl.rollout.workflow import Workflow
from agentrl.trajectory import TokenRecord

IN_PROCESS_URL = "http://agentrl.invalid/v1"
"""Base URL of `episode.client`. It resolves nowhere: the client's transport hands requests to the proxy."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one episode. `error` is the traceback of a failed one."""

    status: Literal["finished", "failed"]
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    record: TokenRecord = field(default_factory=TokenRecord)
    started_at: float = 0.0
    duration_s: float = 0.0
    replayed_tokens: int = 0
    """Tokens that came from the record of an earlier life."""

    @property
    def credited(self) -> bool:
        """Whether single calls or branches have rewards of their own: equal episode rewards then say little."""
        return any(turn.credit is not None or turn.branch_reward is not None for turn in self.record.turns)


class Runner(Protocol):
    """What runs episodes: `EpisodeRunner` in this process, `agentrl.rollout.worker_pool.WorkerRunner` in others."""

    async def run(
        self, task: Task, seed: int, group_seed: int | None = None, journal: Journal | None = None
    ) -> Outcome:
        """One attempt at one task. Whatever the workflow does, this returns an Outcome, unless it is cancelled.

        `group_seed` is shared by the attempts that are compared with each other; default: the attempt's own. `journal`
        keeps the model calls as they happen, and answers those it has again.
        """
        ...

    def with_defaults(self, defaults: SamplingDefaults) -> Runner:
        """The same runner with other defaults of sampling."""
        ...

    def metrics(self) -> dict[str, float]:
        """Sums since the run began."""
        ...


@dataclass(frozen=True, kw_only=True)
class EpisodeRunner:
    """Runs episodes of one workflow against one endpoint, as a `Runner`. Open it with `local_runner` or `remote_runner`."""

    workflow: Workflow
    client: AsyncOpenAI
    model: str
    timeout_s: float
    proxy: Proxy | None = None
    """None: a foreign endpoint, reached with the client's own key; nothing is recorded."""
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    sandboxes: RunSandboxes | None = None
    """None: episodes have no sandboxes."""
    resources: Resources | None = None
    """What environments keep open between calls, and between episodes."""

    async def run(
        self, task: Task, seed: int, group_seed: int | None = None, journal: Journal | None = None
    ) -> Outcome:
        """One attempt at one task; see `Runner.run`."""
        started_at, started = time.time(), time.perf_counter()
        session = self.proxy.open_session(self.defaults, journal) if self.proxy else None
        client = self.client.with_options(api_key=session.key) if session else self.client
        base_url = self.proxy.base_url if self.proxy else str(self.client.base_url)
        episode = Episode(
            task=task,
            seed=seed,
            client=client,
            base_url=base_url,
            api_key=client.api_key,
            model=self.model,
            session=session,
            sandboxes=self.sandboxes,
            resources=self.resources,
            group_seed=group_seed,
        )
        error: str | None = None
        reward = Reward(0.0)
        try:
            try:
                with anyio.move_on_after(self.timeout_s) as bound:
                    reward = Reward.of(await self.workflow(episode))
            finally:
                with anyio.CancelScope(shield=True):
                    await episode.close()
            if bound.cancelled_caught:
                raise EpisodeTimeoutError(
                    f"the episode took longer than rollout.episode_timeout_s = {self.timeout_s:g} s"
                )
            if session is not None and not session.record.turns:
                raise NoModelCallError("run(episode) returned without calling the model")
        except (Exception, SystemExit) as failure:
            error = "".join(traceback.format_exception(failure))
        finally:
            if session is not None and self.proxy is not None:
                self.proxy.close_session(session)
        return Outcome(
            status="finished" if error is None else "failed",
            reward=reward.value,
            metrics={**episode.metrics, **reward.metrics},
            error=error,
            record=session.record if session else TokenRecord(),
            started_at=started_at,
            duration_s=time.perf_counter() - started,
            replayed_tokens=journal.replayed_tokens if journal else 0,
        )

    def with_defaults(self, defaults: SamplingDefaults) -> EpisodeRunner:
        """The same runner with other defaults of sampling."""
        return replace(self, defaults=defaults)

    def metrics(self) -> dict[str, float]:
        """Sums since the run began, of a run that has used sandboxes."""
        totals = vars(self.sandboxes.sandboxes.metrics()) if self.sandboxes else {}
        return {f"sandbox_{name}": value for name, value in totals.items()} if totals.get("taken") else {}


@asynccontextmanager
async def local_runner(
    workflow: Workflow,
    proxy: Proxy,
    *,
    timeout_s: float,
    defaults: SamplingDefaults,
    sandboxes: RunSandboxes | None = None,
) -> AsyncIterator[EpisodeRunner]:
    """A runner whose episodes reach `proxy` inside this process."""
    transport = proxy.in_process_transport()
    async with (
        httpx2.AsyncClient(transport=transport, base_url=IN_PROCESS_URL, timeout=None) as http,
        _episode_resources() as resources,
    ):
        client = AsyncOpenAI(api_key="-", base_url=IN_PROCESS_URL, http_client=http, max_retries=0, timeout=None)
        yield EpisodeRunner(
            workflow=workflow,
            client=client,
            model=proxy.model,
            timeout_s=timeout_s,
            proxy=proxy,
            defaults=defaults,
            sandboxes=sandboxes,
            resources=resources,
        )


@asynccontextmanager
async def remote_runner(
    workflow: Workflow,
    *,
    base_url: str,
    api_key: str,
    model: str,
    timeout_s: float,
    sandboxes: RunSandboxes | None = None,
) -> AsyncIterator[EpisodeRunner]:
    """A runner whose episodes reach any OpenAI-compatible endpoint."""
    # Making a client reads certificates, and imports its transport the first time.
    async with (
        await in_thread(lambda: AsyncOpenAI(api_key=api_key, base_url=base_url)) as client,
        _episode_resources() as resources,
    ):
        yield EpisodeRunner(
            workflow=workflow,
            client=client,
            model=model,
            timeout_s=timeout_s,
            sandboxes=sandboxes,
            resources=resources,
        )


@asynccontextmanager
async def _episode_resources() -> AsyncIterator[Resources]:
    # gymnasium takes a while to import, and workflows ask for environments in the event loop.
    await in_thread(import_module, "agentrl.envs")
    async with open_resources() as resources:
        yield resources


@asynccontextmanager
async def run_sandboxes(config: RunConfig) -> AsyncIterator[RunSandboxes]:
    """The sandboxes of a run. Nothing is started before an episode asks for one."""
    agentrl_sandboxes = await in_thread(import_module, "agentrl.sandboxes")
    sandbox = config.sandbox
    async with agentrl_sandboxes.open_sandboxes(
        backend=sandbox.backend,
        order=("bubblewrap", "docker") if config.engine.kind == "embedded" else ("docker", "bubblewrap"),
        judges=sandbox.boxes,
        lent=sandbox.lent_boxes or config.rollout.max_concurrent,
        wait_timeout_s=sandbox.wait_timeout_s,
    ) as sandboxes:
        yield RunSandboxes(sandboxes, image=sandbox.image, runtime=sandbox.runtime)
