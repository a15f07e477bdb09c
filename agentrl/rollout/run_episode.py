"""Run one episode: a session, an `Episode`, the workflow within its bounds, and what came of it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Required, TypedDict, Unpack

import anyio
import httpx2
import openai.resources.chat.completions  # noqa: F401 -- or `client.chat` imports it on the event loop, at the first call
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from agentrl.config import RolloutConfig
from agentrl.episode import EnvFactory, Episode, EpisodeSandboxes, EpisodeState, Task
from agentrl.errors import NoModelCallError, TooManySessionsError
from agentrl.proxy import CallLog, Proxy, SamplingDefaults, Session
from agentrl.proxy.http_messages import InProcessTransport
from agentrl.record.end_reason import EndReason, only_error
from agentrl.record.trajectory import TokenRecord
from agentrl.reward import Reward, add_metrics
from agentrl.rollout.episode_parts import open_environments
from agentrl.rollout.isolated_call import CallResult, run_isolated
from agentrl.rollout.trained_conversations import ConversationChoices, Trajectories, choose_conversations
from agentrl.rollout.workflow import Workflow, workflow_name
from agentrl.store.outcome import Outcome
from agentrl.system import traces
from agentrl.system.failure_text import add_hint, describe
from agentrl.system.tasks import in_thread, in_users_thread
from agentrl.system.this_process import is_loopback
from agentrl.tasks.task_type import task_of_episode

IN_PROCESS_URL = "http://agentrl.invalid/v1"
"""Base URL of `episode.client`. It resolves nowhere: the client's transport hands requests to the proxy."""
CANCEL_TIMEOUT_S = 10.0
"""How long a workflow may take to end once it is cancelled."""


@dataclass(frozen=True, kw_only=True)
class EpisodeRunner:
    """Runs episodes of one workflow against one endpoint. Open it with `local_runner` or `remote_runner`."""

    workflow: Workflow
    client: AsyncOpenAI
    http: httpx2.AsyncClient
    """Its connections, which all episodes use."""
    model: str
    timeout_s: float
    """Bound of an episode."""
    clock: Callable[[], float] = time.monotonic
    """What that goes by; it may stand still for a while."""
    cancel_timeout_s: float = CANCEL_TIMEOUT_S
    """How long a workflow may take to end once it is cancelled, and its environments to close."""
    proxy: Proxy | None = None
    """None: a foreign endpoint, reached with the client's own key; nothing is recorded."""
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    make_env: EnvFactory | None = None
    """None: episodes have no environments."""
    sandboxes: EpisodeSandboxes | None = None
    """None: episodes have no sandboxes."""
    trajectories: Trajectories = "main"
    """Which conversations are trained on, where the workflow does not say."""
    hanging: set[str] = field(default_factory=set)
    """The places where workflows hang that did not end when they were cancelled."""

    async def run(
        self,
        task: Task,
        seed: int,
        group_seed: int | None = None,
        call_log: CallLog | None = None,
        defaults: SamplingDefaults | None = None,
    ) -> Outcome:
        """Make one attempt at one task.

        Args:
            task: The task.
            seed: The attempt's.
            group_seed: Shared by the attempts that are compared with each other; default: the attempt's own.
            call_log: Keeps the model calls as they happen, and answers those it has again.
            defaults: How a request is sampled that does not say; default: as the runner's configuration has it.

        Returns:
            What came of it, whatever the workflow does, unless the attempt is cancelled.
        """
        name = workflow_name(self.workflow)
        names = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name, "gen_ai.provider.name": "agentrl"}
        names |= {"gen_ai.request.model": self.model}
        seeds = {"agentrl.seed": seed, "agentrl.group_seed": seed if group_seed is None else group_seed}
        with traces.span(f"invoke_agent {name}", {**names, **seeds}) as span:
            outcome = await self._run(task, seed, group_seed, call_log, defaults)
            span.set_attribute("agentrl.reason", outcome.reason)
            if outcome.finished:
                span.set_attribute("agentrl.reward", outcome.reward)
            else:
                traces.fail(span, outcome.reason)
        return outcome

    async def _run(
        self, task: Task, seed: int, group: int | None, call_log: CallLog | None, defaults: SamplingDefaults | None
    ) -> Outcome:
        started_at, started = time.time(), time.perf_counter()
        try:
            session = self.proxy.open_session(defaults or self.defaults, call_log) if self.proxy else None
        except TooManySessionsError as refusal:
            return Outcome(reason=EndReason.NO_SESSION, error=describe(refusal), started_at=started_at)
        # Its own, as a workflow may close it; making it connects nothing.
        http = httpx2.AsyncClient(transport=_SharedTransport(self.http), timeout=None, trust_env=False)
        client = self.client.with_options(api_key=session.key if session else self.client.api_key, http_client=http)
        state = EpisodeState()

        async def run() -> Reward:
            episode: Episode[Any] = Episode(
                task=task_of_episode(self.workflow, task),
                seed=seed,
                client=client,
                base_url=self.proxy.base_url if self.proxy else str(client.base_url),
                api_key=client.api_key,
                model=self.model,
                session=session,
                make_env=self.make_env,
                sandboxes=self.sandboxes,
                group_seed=group,
                state=state,
            )
            try:
                returned = await self.workflow(episode)
            except Exception as error:
                if session is None or not session.has_outgrown(only_error(error)):
                    add_hint(only_error(error), episode.task)
                    raise
                session.record.turns[-1].truncated = True
                returned = Reward(0.0, metrics={"truncated": 1.0})
            finally:
                state.trajectories = episode.trajectories
            return Reward.of(returned, self.workflow)

        try:
            limit = f"`rollout.episode_timeout_s` = {self.timeout_s:g} s"
            ended: CallResult[Reward] = await self._isolated(
                run, "the workflow", limit, self.timeout_s, clock=self.clock
            )
        finally:
            # First, so that nothing is said to an episode that has ended; and its record is final, whatever the workflow left.
            state.closed = True
            if session is not None and self.proxy is not None:
                self.proxy.close_session(session)
            with anyio.CancelScope(shield=True):
                timeout_s = self.cancel_timeout_s
                what, limit = "the close of its environments", f"{timeout_s:g} s: let their `aclose` wait for less"
                closed = await self._isolated(state.close, what, limit, timeout_s, reason=EndReason.CLOSE)
        record = session.record if session else None
        chosen = await self._choose_conversations(session, state.trajectories)
        with anyio.CancelScope(shield=True):
            outcome = await in_thread(self._outcome, ended, closed, chosen, state, record)
        return replace(
            outcome,
            record=record or TokenRecord(),
            started_at=started_at,
            duration_s=time.perf_counter() - started,
            conversations=len(chosen.value.chosen) if chosen.value else 0,
            rerendered_tokens=chosen.value.rerendered_tokens if chosen.value else 0,
            replayed_tokens=call_log.replayed_tokens if call_log else 0,
        )

    @property
    def _isolated(self) -> Any:
        return partial(run_isolated, cancel_timeout_s=self.cancel_timeout_s, hanging=self.hanging)

    def metrics(self) -> dict[str, float]:
        """Return sums since the run began, of a run that has used sandboxes."""
        return self.sandboxes.metrics() if self.sandboxes else {}

    async def _choose_conversations(self, session: Session | None, own: object) -> CallResult[ConversationChoices]:
        """Choose the conversations that are trained on, and write that into the record. A function of the user's may do anything."""
        if session is None:
            return CallResult(ConversationChoices())
        trajectories = self.trajectories if own is None else own
        users = callable(trajectories)
        run_in = in_users_thread if users else in_thread
        choose = partial(run_in, choose_conversations, session.record, trajectories)
        timeout_s = self.cancel_timeout_s if users else math.inf
        what, limit = "the function of trajectories", f"{timeout_s:g} s: let it wait for nothing"
        with anyio.CancelScope(shield=True):
            chosen: CallResult[ConversationChoices] = await self._isolated(
                choose, what, limit, timeout_s, reason=EndReason.TRAJECTORIES
            )
        if chosen.value is not None:
            chosen.value.apply(session.role_rewards)
            session.warn_of_silent_roles()
        return chosen

    def _outcome(
        self,
        ended: CallResult[Reward],
        closed: CallResult[Any],
        chosen: CallResult[Any],
        state: EpisodeState,
        record: TokenRecord | None,
    ) -> Outcome:
        """Return what came of an episode that has ended, in plain numbers and texts."""
        late = ended.reason == EndReason.TIMEOUT and closed.reason == EndReason.HUNG
        results = (closed,) if late else (ended, closed, chosen)
        failed = next((one for one in results if one.error is not None), None)
        if failed is None and record is not None and not record.turns:
            none = NoModelCallError("run(episode) returned without calling the model")
            failed = CallResult(error=none, reason=EndReason.NO_MODEL_CALL)
        if failed is not None and failed.error is not None:
            return Outcome(reason=failed.reason, metrics=dict(state.metrics), error=describe(failed.error))
        assert ended.value is not None
        metrics = add_metrics(dict(state.metrics), ended.value.metrics)
        details = json.dumps(ended.value.details) if ended.value.details else None
        return Outcome(reason=EndReason.FINISHED, reward=ended.value.value, metrics=metrics, details=details)


def sampling_defaults(rollout: RolloutConfig) -> SamplingDefaults:
    """Return how a request of a run's episode that does not say is sampled."""
    return SamplingDefaults(temperature=rollout.temperature, top_p=rollout.top_p, max_tokens=rollout.max_tokens)


class _SharedTransport(httpx2.AsyncBaseTransport):
    """The connections of a client that goes on when the one that uses them so is closed."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        for name, value in traces.headers().items():
            request.headers.setdefault(name, value)
        return await self._http.send(request, stream=True)


class EpisodeOptions(TypedDict, total=False):
    """The fields of an `EpisodeRunner` that those who open one choose."""

    timeout_s: Required[float]
    clock: Callable[[], float]
    cancel_timeout_s: float
    defaults: SamplingDefaults
    sandboxes: EpisodeSandboxes | None
    trajectories: Trajectories


@asynccontextmanager
async def local_runner(
    workflow: Workflow, proxy: Proxy, **options: Unpack[EpisodeOptions]
) -> AsyncIterator[EpisodeRunner]:
    """Yield a runner of a workflow whose episodes reach `proxy` inside this process."""
    async with (
        httpx2.AsyncClient(transport=InProcessTransport(proxy.handle), base_url=IN_PROCESS_URL, timeout=None) as http,
        open_environments() as make_env,
    ):
        client = AsyncOpenAI(api_key="-", base_url=IN_PROCESS_URL, http_client=http, max_retries=0, timeout=None)
        yield EpisodeRunner(
            workflow=workflow, client=client, http=http, model=proxy.model, proxy=proxy, make_env=make_env, **options
        )


@asynccontextmanager
async def remote_runner(
    workflow: Workflow, *, base_url: str, api_key: str, model: str, **options: Unpack[EpisodeOptions]
) -> AsyncIterator[EpisodeRunner]:
    """Yield a runner of a workflow whose episodes reach the model of that name at any OpenAI-compatible endpoint."""
    # Making a client reads certificates, and imports its transport the first time.
    make_http = partial(DefaultAsyncHttpxClient, trust_env=not is_loopback(base_url))
    async with await in_thread(make_http) as http, open_environments() as make_env:
        client = await in_thread(lambda: AsyncOpenAI(api_key=api_key, base_url=base_url, http_client=http))
        yield EpisodeRunner(workflow=workflow, client=client, http=http, model=model, make_env=make_env, **options)
