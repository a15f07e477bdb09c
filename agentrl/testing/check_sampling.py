"""The clauses of an engine's contract that are about other distributions than the policy's own: cuts, penalties and a bias.

Differences of logprobs at one position are differences of logits, so that what was added to a logit is measured without the logits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import combinations
from typing import Protocol

import anyio

from agentrl.engine.protocol import Sampling
from agentrl.record.tokens import Generation
from agentrl.testing.clause import require

DRAWS = 40
TOP = 10
TOKENS = 24
TOLERANCE = 2e-3


class Ask(Protocol):
    """Makes one reply, which is sound."""

    async def __call__(
        self, sampling: Sampling, *, session: str = "check", after: list[int] | None = None
    ) -> Generation:
        """Continue the prompt of the check, with the ids `after` behind it."""
        ...


def sampling_cases(ask: Ask) -> list[Callable[[], Awaitable[None]]]:
    """Return the clauses, each to be awaited.

    Args:
        ask: Asks the engine.

    Returns:
        Functions that raise BrokenContractError.
    """

    async def top_k_1_is_greedy() -> None:
        wanted = await ask(Sampling(max_new_tokens=16, temperature=0))
        found = await ask(Sampling(max_new_tokens=16, temperature=1.7, top_k=1))
        require(
            found.output_ids == wanted.output_ids and _near(found.logprobs, wanted.logprobs),
            f"at temperature 0 the reply is {wanted.output_ids}, and with top_k = 1 and temperature 1.7 it is {found.output_ids}; the "
            f"logprobs begin {wanted.logprobs[:3]} and {found.logprobs[:3]}",
            "top_k = 1 is greedy decoding, which is reported at temperature 1",
        )

    async def top_k_and_min_p_cut_and_keep_the_logprobs() -> None:
        plain = await ask(Sampling(max_new_tokens=1, top_logprobs=TOP))
        ordered = plain.top_logprobs[0]
        for sampling in (
            Sampling(max_new_tokens=1, temperature=1.0, top_k=2, top_logprobs=TOP),
            Sampling(max_new_tokens=1, temperature=1.0, min_p=1.0, top_logprobs=TOP),
        ):
            # What is as likely as the last one that is left may be left in its place.
            last = ordered[1][0] if sampling.top_k == 2 else ordered[0][0]
            for reply in await _many(ask, sampling):
                require(
                    reply.logprobs[0] > last - TOLERANCE,
                    f"with top_k = {sampling.top_k} and min_p = {sampling.min_p} a token of logprob {reply.logprobs[0]:.4f} came; the "
                    f"likeliest are {ordered}",
                    "top_k draws from so many of the likeliest tokens, and min_p from those with that share of the likeliest one's "
                    "probability",
                )
                require(
                    _near([logprob for logprob, _ in reply.top_logprobs[0]], [logprob for logprob, _ in ordered]),
                    f"with top_k = {sampling.top_k} and min_p = {sampling.min_p} the likeliest are reported as {reply.top_logprobs[0]}, and "
                    f"without as {ordered}",
                    "logprobs are those before any cut by top_k or min_p",
                )

    async def a_bias_is_added_to_a_logit() -> None:
        plain = await ask(Sampling(max_new_tokens=1, top_logprobs=TOP))
        (first, token), (second, other) = plain.top_logprobs[0][:2]
        for bias in (-0.5, 1.5):
            reply = await ask(Sampling(max_new_tokens=1, logit_bias=[(other, bias)], top_logprobs=TOP))
            found = {id_: logprob for logprob, id_ in reply.top_logprobs[0]}
            shift = found[other] - found[token] - (second - first)
            require(
                abs(shift - bias) < TOLERANCE,
                f"logit_bias = {bias} on the token {other} moved its logprob by {shift:.4f} against that of {token}",
                "logit_bias is added to the logit, before the temperature, and the logprobs are those after it",
            )

    async def a_bias_bans_and_forces() -> None:
        greedy = (await ask(Sampling(max_new_tokens=1, temperature=0))).output_ids[0]
        banned = Sampling(max_new_tokens=1, logit_bias=[(greedy, -100.0)])
        counts = Counter(reply.output_ids[0] for reply in await _many(ask, banned))
        require(
            not counts[greedy],
            f"with a logit_bias of -100 the token {greedy} came {counts[greedy]} times in {DRAWS} draws",
            "logit_bias = -100 bans a token",
        )
        unlikely = counts.most_common()[-1][0]
        forced = await ask(Sampling(max_new_tokens=4, logit_bias=[(unlikely, 100.0)]))
        require(
            forced.output_ids == [unlikely] * 4 and all(logprob > -TOLERANCE for logprob in forced.logprobs),
            f"with a logit_bias of 100 on the token {unlikely} the reply is {forced.output_ids}, with the logprobs {forced.logprobs}",
            "logit_bias = 100 forces a token, whose reported logprob is about 0",
        )

    async def penalties_are_taken_off_what_the_reply_holds() -> None:
        for frequency, presence in ((0.4, 0.0), (0.0, 0.7), (-0.3, 0.2)):
            sampling = Sampling(
                max_new_tokens=TOKENS,
                temperature=0,
                frequency_penalty=frequency,
                presence_penalty=presence,
                top_logprobs=TOP,
            )
            for counts, shift in await _shifts(ask, sampling):
                wanted = [-frequency * count - presence * (count > 0) for count in counts]
                require(
                    abs(shift - (wanted[0] - wanted[1])) < TOLERANCE,
                    f"with frequency_penalty = {frequency} and presence_penalty = {presence} the logits of tokens that the reply held "
                    f"{counts[0]} and {counts[1]} times moved by {shift:.4f} against each other",
                    "frequency_penalty is taken off a logit as often as the reply holds the token, presence_penalty once; the prompt "
                    "does not count",
                )

    async def a_repetition_penalty_makes_what_the_reply_holds_less_likely() -> None:
        sampling = Sampling(max_new_tokens=TOKENS, temperature=0, repetition_penalty=1.8, top_logprobs=TOP)
        for counts, shift in await _shifts(ask, sampling):
            times = [count > 0 for count in counts]
            holds = shift < TOLERANCE if times == [True, False] else abs(shift) < TOLERANCE if not any(times) else True
            require(
                holds,
                f"with repetition_penalty = 1.8 the logits of tokens that the reply held {counts[0]} and {counts[1]} times moved by "
                f"{shift:.4f} against each other",
                "repetition_penalty divides the logits of tokens that the reply holds where they are positive, and multiplies them "
                "where they are negative",
            )

    return [
        top_k_1_is_greedy,
        top_k_and_min_p_cut_and_keep_the_logprobs,
        a_bias_is_added_to_a_logit,
        a_bias_bans_and_forces,
        penalties_are_taken_off_what_the_reply_holds,
        a_repetition_penalty_makes_what_the_reply_holds_less_likely,
    ]


async def _many(ask: Ask, sampling: Sampling) -> list[Generation]:
    replies: list[Generation] = []

    async def one(index: int) -> None:
        replies.append(await ask(sampling, session=f"draw-{index}"))

    async with anyio.create_task_group() as group:
        for index in range(DRAWS):
            group.start_soon(one, index)
    return replies


async def _shifts(ask: Ask, sampling: Sampling) -> list[tuple[tuple[int, int], float]]:
    """Return how two tokens' logits moved against each other, at every position, with how often the reply held each; the one held oftener first."""
    reply = await ask(sampling)
    plain: dict[int, Generation] = {}

    async def one(position: int) -> None:
        likeliest = Sampling(max_new_tokens=1, temperature=0, top_logprobs=TOP)
        plain[position] = await ask(likeliest, session=f"at-{position}", after=reply.output_ids[:position])

    async with anyio.create_task_group() as group:
        for position in range(len(reply.output_ids)):
            group.start_soon(one, position)
    found: list[tuple[tuple[int, int], float]] = []
    for position, generation in plain.items():
        free = {token: logprob for logprob, token in generation.top_logprobs[0]}
        bound = {token: logprob for logprob, token in reply.top_logprobs[position]}
        counts = Counter(reply.output_ids[:position])
        both = sorted(free.keys() & bound.keys(), key=lambda id_: -counts[id_])
        found += [
            ((counts[token], counts[other]), (bound[token] - bound[other]) - (free[token] - free[other]))
            for token, other in combinations(both, 2)
        ]
    return found


def _near(some: list[float], others: list[float]) -> bool:
    return len(some) == len(others) and all(
        math.isclose(one, other, abs_tol=TOLERANCE) for one, other in zip(some, others, strict=True)
    )
