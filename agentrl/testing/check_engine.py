"""`check_engine`: the contract of `agentrl.engine.protocol.UpdatableEngine`, as a program that anyone runs on their own engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from agentrl.engine.protocol import PauseMode, Sampling, UpdatableEngine
from agentrl.record.soundness import Expected, fault_of
from agentrl.record.tokens import Generation
from agentrl.system.tasks import in_users_thread
from agentrl.testing.clause import require, try_cases
from agentrl.testing.problems import Problems

TokenLogprobs = Callable[[list[int], list[int], float], Sequence[float]]
"""(prompt ids, output ids [T], temperature) -> the logprob of every output token [T], from a forward pass of your own."""
SILENT_S = 0.3
"""How long a paused engine is watched."""
RESUME_TIMEOUT_S = 10.0
SIGMAS = 5.0
DRAWS = 400
TOP = 3
MAX_LOGPROB_ERROR = 1e-3


async def check_engine(
    engine: UpdatableEngine,
    /,
    prompt: Sequence[int],
    *,
    checkpoints: tuple[Path, Path] | None = None,
    token_logprobs: TokenLogprobs | None = None,
    pause_mode: PauseMode = "retract",
    max_tokens: int = 200,
    timeout_s: float = 120.0,
) -> None:
    """Ask an engine for replies, interrupt them, and raise what it does against its contract.

    Args:
        engine: It serves `checkpoints[0]`, if there are any.
        prompt: Ids to go on from.
        checkpoints: Two directories of weights. With them a weight update in the middle of replies is checked; afterwards the
            first is served again, as a version that is newer by two.
        token_logprobs: With it the reported logprobs are compared with those of a forward pass, to 1e-3.
        pause_mode: How replies are paused.
        max_tokens: Tokens of a long reply, one that can be interrupted.
        timeout_s: Bound of each case.

    Raises:
        CheckFailedError: Something is against the contract. The message lists every problem with what the contract says.
    """
    contract = _Contract(engine, list(prompt), checkpoints, token_logprobs, pause_mode, max_tokens)
    problems = Problems(f"the engine {type(engine).__name__}")
    await try_cases(
        contract.cases(),
        problems,
        timeout_s=timeout_s,
        ends="every call ends, whatever happens meanwhile",
        raises="calls of the contract raise nothing",
    )
    problems.raise_any()


@dataclass(frozen=True)
class _Contract:
    engine: UpdatableEngine
    prompt: list[int]
    checkpoints: tuple[Path, Path] | None
    token_logprobs: TokenLogprobs | None
    pause_mode: PauseMode
    max_tokens: int

    def cases(self) -> list[Callable[[], Awaitable[None]]]:
        always: list[Callable[[], Awaitable[None]]] = [
            self.health,
            self.a_reply_is_sound,
            self.temperature_0_is_greedy,
            self.a_tiny_top_p_keeps_the_logprobs_of_the_whole_distribution,
            self.a_stop_token_ends_a_reply,
            self.top_logprobs_are_the_likeliest,
            self.sampling_follows_the_distribution,
            self.progress_grows_into_the_reply,
            self.a_call_that_is_cancelled_leaves_the_engine_free,
            self.many_replies_at_once_all_end,
            self.a_pause_holds_replies,
        ]
        if self.token_logprobs is not None:
            always.append(self.logprobs_are_those_of_a_forward_pass)
        return [*always, self.a_weight_update_splits_replies] if self.checkpoints else always

    async def ask(
        self,
        count: int = 8,
        *,
        session: str = "check",
        on_progress: Callable[[list[int]], None] | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        stop_token_ids: Sequence[int] = (),
        top_logprobs: int = 0,
    ) -> Generation:
        sampling = Sampling(
            max_new_tokens=count,
            temperature=temperature,
            top_p=top_p,
            stop_token_ids=stop_token_ids,
            top_logprobs=top_logprobs,
        )
        generation = await self.engine.generate(self.prompt, sampling, session, on_progress)
        expected = Expected(
            max_new_tokens=sampling.max_new_tokens,
            vocabulary=self.engine.vocabulary,
            top_logprobs=sampling.top_logprobs,
        )
        fault = fault_of(generation, expected)
        require(
            fault is None, f"a reply is not sound: {fault}", "generate returns sound replies (agentrl.record.soundness)"
        )
        self.engine.end_session(session)
        return generation

    async def health(self) -> None:
        await self.engine.health()

    async def a_reply_is_sound(self) -> None:
        version = self.engine.version
        generation = await self.ask(8)
        require(bool(generation.output_ids), "a reply has no tokens", "a reply holds one token at least")
        served = {span.version for span in generation.versions}
        require(
            served == {version},
            f"engine.version is {version}, and the tokens of a reply name the versions {sorted(served)}",
            "`versions` names the weights that each token was sampled under",
        )

    async def temperature_0_is_greedy(self) -> None:
        first, second = [await self.ask(16, temperature=0) for _ in range(2)]
        require(
            first.output_ids == second.output_ids,
            f"two replies at temperature 0 differ: {first.output_ids} and {second.output_ids}",
            "temperature 0 is greedy decoding",
        )

    async def a_tiny_top_p_keeps_the_logprobs_of_the_whole_distribution(self) -> None:
        greedy, nucleus = await self.ask(1, temperature=0), await self.ask(1, top_p=1e-6, top_logprobs=TOP)
        require(
            greedy.output_ids == nucleus.output_ids,
            f"the first token is {greedy.output_ids} at temperature 0 and {nucleus.output_ids} with top_p = 1e-6",
            "top_p samples from the likeliest tokens alone",
        )
        second = nucleus.top_logprobs[0][1][0]
        require(
            nucleus.logprobs[0] < 0 or second < -20,
            f"the logprob of the token is {nucleus.logprobs[0]}, and that of the second likeliest {second}",
            "logprobs are those before any cut by top_p",
        )

    async def a_stop_token_ends_a_reply(self) -> None:
        free = await self.ask(16, temperature=0)
        token = free.output_ids[len(free.output_ids) // 2]
        end = free.output_ids.index(token) + 1
        stopped = await self.ask(16, temperature=0, stop_token_ids=[token])
        require(
            (stopped.output_ids, stopped.finish) == (free.output_ids[:end], "stop"),
            f"with the stop token {token} the reply {free.output_ids} became {stopped.output_ids}, finished by {stopped.finish!r}",
            "a reply ends with its first stop token, which is part of its ids, and finish is 'stop'",
        )

    async def top_logprobs_are_the_likeliest(self) -> None:
        generation = await self.ask(8, top_logprobs=TOP)
        for token, logprob, top in zip(
            generation.output_ids, generation.logprobs, generation.top_logprobs, strict=True
        ):
            reported = {id_: value for value, id_ in top}
            least = min(reported.values())
            sound = abs(reported[token] - logprob) < 1e-3 if token in reported else logprob <= least + 1e-3
            require(
                len(top) == TOP and sound,
                f"the token {token} has the logprob {logprob:.4f}, and the {TOP} likeliest are {top}",
                "top_logprobs holds (logprob, id) of the likeliest tokens of the distribution that is sampled from",
            )

    async def sampling_follows_the_distribution(self) -> None:
        counts: Counter[int] = Counter()
        top: list[tuple[float, int]] = []

        async def draw(index: int) -> None:
            generation = await self.ask(1, session=f"draw-{index}", top_logprobs=TOP)
            counts[generation.output_ids[0]] += 1
            top[:] = generation.top_logprobs[0]

        for start in range(0, DRAWS, 50):
            async with anyio.create_task_group() as group:
                for index in range(start, start + 50):
                    group.start_soon(draw, index)
        for logprob, token in top:
            p = 2.718281828459045**logprob
            share, bound = counts[token] / DRAWS, SIGMAS * (p * (1 - p) / DRAWS) ** 0.5 + 1e-3
            require(
                abs(share - p) < bound,
                f"the token {token} has the probability {p:.3f} and came in {share:.3f} of {DRAWS} draws",
                "tokens are sampled from the distribution whose logprobs are reported",
            )

    async def progress_grows_into_the_reply(self) -> None:
        seen: list[list[int]] = []
        generation = await self.ask(self.max_tokens, on_progress=lambda ids: seen.append(list(ids)))
        for ids in seen:
            require(
                generation.output_ids[: len(ids)] == ids,
                f"on_progress was called with {ids[:8]}..., and the reply begins {generation.output_ids[:8]}...",
                "the reply keeps the ids that on_progress was called with",
            )
        lengths = [len(ids) for ids in seen]
        require(lengths == sorted(lengths), f"on_progress was called with {lengths} ids in turn", "a reply only grows")

    async def a_call_that_is_cancelled_leaves_the_engine_free(self) -> None:
        for index in range(8):
            with anyio.move_on_after(0.02 * index):
                await self.ask(self.max_tokens, session=f"cancelled-{index}")
        await self.ask(4)
        await self.engine.health()

    async def many_replies_at_once_all_end(self) -> None:
        done: list[Generation] = []

        async def one(index: int) -> None:
            done.append(await self.ask(8, session=f"many-{index % 8}"))

        async with anyio.create_task_group() as group:
            for index in range(64):
                group.start_soon(one, index)
        require(len(done) == 64, f"{len(done)} of 64 replies came", "every call ends")

    async def a_pause_holds_replies(self) -> None:
        replies: list[Generation] = []

        async def one() -> None:
            replies.append(await self.ask(4, session="paused"))

        async with anyio.create_task_group() as group:
            await self.engine.pause(self.pause_mode)
            try:
                group.start_soon(one)
                await anyio.sleep(SILENT_S)
                held = not replies
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(RESUME_TIMEOUT_S):
                    await self.engine.resume()
        require(
            held, "a reply came while the engine was paused", "a paused engine produces no tokens until it is resumed"
        )
        require(
            len(replies) == 1, "the reply did not come after the engine was resumed", "resume goes on with what waits"
        )

    async def logprobs_are_those_of_a_forward_pass(self) -> None:
        assert self.token_logprobs is not None
        for temperature in (0.5, 1.0, 1.7):
            generation = await self.ask(8, temperature=temperature)
            wanted = await in_users_thread(self.token_logprobs, self.prompt, generation.output_ids, temperature)
            worst = max(abs(a - b) for a, b in zip(generation.logprobs, wanted, strict=True))
            require(
                worst < MAX_LOGPROB_ERROR,
                f"at temperature {temperature} a logprob differs from that of a forward pass by {worst:.2g}",
                "logprobs are log softmax(logits / temperature) at the sampled token",
            )

    async def a_weight_update_splits_replies(self) -> None:
        assert self.checkpoints is not None
        before, grown = self.engine.version, anyio.Event()
        replies: list[Generation] = []

        async def one(index: int) -> None:
            generation = await self.ask(self.max_tokens, session=f"update-{index}", on_progress=lambda _: grown.set())
            replies.append(generation)

        async with anyio.create_task_group() as group:
            for index in range(8):
                group.start_soon(one, index)
            await grown.wait()
            await self.engine.update_weights(self.checkpoints[1], before + 1)
            require(
                self.engine.version == before + 1,
                f"after update_weights(..., {before + 1}) engine.version is {self.engine.version}",
                "engine.version is the version that serves new tokens",
            )
        after = await self.ask(4)
        await self.engine.update_weights(self.checkpoints[0], before + 2)
        named = {span.version for generation in replies for span in generation.versions}
        require(
            named == {before, before + 1},
            f"the replies in flight name the versions {sorted(named)}, and those before and after were {before} and {before + 1}",
            "replies in flight are interrupted, and go on under the new weights: their spans say where",
        )
        require(
            {span.version for span in after.versions} == {before + 1},
            f"a reply after the update names the versions {[span.version for span in after.versions]}",
            "a reply that begins after update_weights has returned is made by the new weights",
        )
