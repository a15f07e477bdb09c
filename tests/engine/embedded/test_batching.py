"""The batching engine from the inside: what a server would only show after days."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from anyio.to_thread import run_sync as in_thread
from transformers import Gemma2Config, Gemma2ForCausalLM

from agentrl.engine.embedded.batching import MAX_PROMPT_TOKENS, BatchingEngine
from agentrl.engine.embedded.paged_cache import use_paged_attention
from agentrl.engine.embedded.sampling import Request, draw
from agentrl.engine.protocol import Sampling
from agentrl.models import NANO
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from tests.components import wait_until
from tests.rescoring import Rescorer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[BatchingEngine]:
    """An engine that makes replies for the length of the context."""
    engine = await in_thread(lambda: BatchingEngine(NANO, **options))
    async with anyio.create_task_group() as group:
        group.start_soon(engine.run)
        yield engine
        group.cancel_scope.cancel()


@pytest.fixture
async def engine() -> AsyncIterator[BatchingEngine]:
    async with running(max_total_tokens=4096) as engine:
        yield engine


class Reply(Request):
    """A request that says when it has ended."""

    def __init__(self, prompt: list[int], tokens: int) -> None:
        self.changed = anyio.Event()
        super().__init__(prompt, Sampling(max_new_tokens=tokens), self.changed.set)

    async def ended(self) -> None:
        with anyio.fail_after(120):
            await self.changed.wait()


async def generate(engine: BatchingEngine, prompts: list[list[int]], tokens: int = 5) -> list[Reply]:
    replies = [Reply(prompt, tokens) for prompt in prompts]
    for reply in replies:
        engine.submit(reply)
    for reply in replies:
        await reply.ended()
    return replies


def prompts(count: int) -> list[list[int]]:
    return [[1, 2, 3, number + 4] for number in range(count)]


def recorded(replies: Sequence[Request], version: int = 0) -> TokenRecord:
    record = TokenRecord()
    for reply in replies:
        spans, ids = [VersionSpan(version, 0, len(reply.output_ids))], reply.output_ids
        generation = Generation(output_ids=ids, logprobs=reply.logprobs, versions=spans, finish="length")
        record.add("id", None, reply.input_ids, generation, 1.0)
    return record


async def assert_exact(record: TokenRecord, weights: list[Path]) -> None:
    assert await in_thread(lambda: Rescorer(weights).largest_difference(record)) < 1e-4


async def test_requests_that_ended_leave_every_page_for_others(engine: BatchingEngine) -> None:
    pages = engine._cache.available
    for _ in range(3):
        assert all(len(reply.output_ids) == 5 for reply in await generate(engine, prompts(20)))
    await generate(engine, prompts(1), tokens=2)  # the pages of what ended go back before the next forward pass
    assert engine._cache.available >= pages - 1
    assert not engine.open_requests()


async def test_a_turn_reports_the_tokens_of_the_turn_before_as_cached(engine: BatchingEngine) -> None:
    (first,) = await generate(engine, [[3, *range(30, 80)]], tokens=30)
    assert first.cached_tokens == 0
    so_far = first.input_ids + first.output_ids
    (second,) = await generate(engine, [[*so_far, 7, 8, 9]], tokens=30)
    # Of the reply, the last token was drawn and never computed; pages are shared whole.
    assert second.cached_tokens == (len(so_far) - 1) // 16 * 16
    (other,) = await generate(engine, [[4, *range(30, 80)]])
    assert other.cached_tokens == 0, "another beginning"
    await assert_exact(recorded([first, second]), [NANO])


async def test_a_prompt_of_several_forward_passes_is_answered_where_no_other_reply_grows(
    engine: BatchingEngine,
) -> None:
    (reply,) = await generate(engine, [[5] * (MAX_PROMPT_TOKENS + 100)], tokens=1)
    assert len(reply.output_ids) == 1


@pytest.mark.parametrize("cap", [None, 50.0])
def test_a_model_that_caps_its_attention_scores_is_refused(cap: float | None) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64, "head_dim": 16}
    config = Gemma2Config(**sizes, num_attention_heads=2, num_key_value_heads=1, attn_logit_softcapping=cap)
    with nullcontext() if cap is None else pytest.raises(ValueError, match="attn_logit_softcapping"):
        use_paged_attention(Gemma2ForCausalLM(config).eval())


async def test_more_requests_than_the_cache_holds_all_end(engine: BatchingEngine) -> None:
    assert all(len(reply.output_ids) == 60 for reply in await generate(engine, prompts(120), tokens=60))


async def test_a_cache_smaller_than_the_context_bounds_the_context() -> None:
    async with running(max_total_tokens=256) as small:
        assert small.context_length < 256
        (reply,) = await generate(small, prompts(1), tokens=small.context_length - 4)
        assert len(reply.output_ids) == small.context_length - 4


async def test_retracting_twice_without_progress_loses_nothing(engine: BatchingEngine) -> None:
    replies = [Reply(prompt, 40) for prompt in prompts(8)]
    await engine.pause("in_place")
    for reply in replies:
        engine.submit(reply)
    for _ in range(2):
        await engine.pause("retract")
        await engine.pause("retract")
        await engine.resume()
    for reply in replies:
        await reply.ended()
    assert all(len(reply.output_ids) == 40 for reply in replies)


def test_draw_reports_the_tempered_distribution_and_respects_the_nucleus() -> None:
    torch.manual_seed(0)
    logits = torch.randn(400, 12)
    samplings = [Sampling(max_new_tokens=1, temperature=0.7, top_p=0.5)] * 400
    tokens, logprobs = draw(logits, samplings, [0] * 400)
    assert torch.allclose(logprobs, torch.log_softmax(logits / 0.7, -1), atol=1e-6)
    ordered, order = logprobs.exp().sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    rank = (order == tokens.unsqueeze(1)).float().argmax(-1)
    assert (before.gather(1, rank.unsqueeze(1)) <= 0.5).all()


async def test_a_request_that_ended_during_the_pause_leaves_no_stale_cache(
    engine: BatchingEngine, versions: list[Path]
) -> None:
    """It still runs when the cache is flushed; its KV cache must not come back as a prefix."""
    prompt = [1, *range(20, 80)]
    ended = Reply(prompt, 500)
    engine.submit(ended)
    await wait_until(lambda: bool(ended.output_ids), 120)
    await engine.pause("in_place")
    engine.abort(ended)
    await engine.pause("retract")
    await engine.load_weights(versions[2], "2", flush_cache=True)
    await engine.resume()
    replies = await generate(engine, [prompt], tokens=10)
    await assert_exact(recorded(replies, version=2), versions[:3])


async def test_prepared_weights_need_their_files_no_longer_and_are_for_their_directory_alone(
    engine: BatchingEngine, versions: list[Path], tmp_path: Path
) -> None:
    own = shutil.copytree(versions[1], tmp_path / "own")
    await engine.prepare_weights(own)
    shutil.rmtree(own)
    await engine.load_weights(own, "1", flush_cache=True)
    await assert_exact(recorded(await generate(engine, prompts(1)), version=1), versions[:2])
    await engine.prepare_weights(versions[3])
    await engine.load_weights(versions[2], "2", flush_cache=True)
    await assert_exact(recorded(await generate(engine, prompts(1)), version=2), versions[:3])


@pytest.mark.soak
async def test_prompts_that_fill_several_batches_keep_replies_apart(versions: list[Path]) -> None:
    """Long prompts at once: the last of a batch is prefilled in part, and has no token to record."""
    replies: list[Reply] = []
    async with running() as engine:
        for round_ in range(3):
            some = [Reply([1, *((7 * i + 13 * k + round_) % 450 + 9 for k in range(262))], 80) for i in range(14)]
            for reply in some:
                engine.submit(reply)
            await wait_until(lambda some=some: all(reply.output_ids for reply in some), 120)  # type: ignore[misc]
            await engine.pause("retract")
            await engine.resume()
            for reply in some:
                await reply.ended()
            replies += some
    await assert_exact(recorded(replies), versions[:1])
