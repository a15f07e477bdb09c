"""The batching engine from the inside: what a server would only show after days."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from agentrl.engine.embedded.batching import MAX_PROMPT_TOKENS, BatchingEngine
from agentrl.engine.embedded.paged_cache import use_paged_attention
from agentrl.engine.embedded.sampling import Request, draw
from agentrl.engine.protocol import Sampling
from agentrl.models import NANO
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from tests.rescoring import Rescorer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine() -> Iterator[BatchingEngine]:
    engine = BatchingEngine(NANO, max_total_tokens=4096)
    engine.start()
    yield engine
    engine.stop()
    assert not engine._thread.is_alive()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def generate(engine: BatchingEngine, count: int, tokens: int = 5) -> list[Request]:
    done = threading.Semaphore(0)
    requests = [Request([1, 2, 3, i + 4], Sampling(max_new_tokens=tokens), done.release) for i in range(count)]
    for request in requests:
        engine.submit(request)
    for _ in requests:
        assert done.acquire(timeout=120)
    return requests


def test_requests_that_ended_leave_every_page_for_others(engine: BatchingEngine) -> None:
    pages = engine._cache.available
    for _ in range(3):
        assert all(len(request.output_ids) == 5 for request in generate(engine, 20))
    eventually(lambda: engine._cache.available == pages)
    assert not engine.open_requests()


def test_a_turn_reports_the_tokens_of_the_turn_before_as_cached(engine: BatchingEngine) -> None:
    def turn(prompt: list[int]) -> Request:
        done = threading.Event()
        request = Request(prompt, Sampling(max_new_tokens=30), done.set)
        engine.submit(request)
        assert done.wait(120)
        return request

    first = turn([3, *range(30, 80)])
    assert first.cached_tokens == 0
    so_far = first.input_ids + first.output_ids
    second = turn([*so_far, 7, 8, 9])
    # Of the reply, the last token was drawn and never computed; pages are shared whole.
    assert second.cached_tokens == (len(so_far) - 1) // 16 * 16
    assert turn([4, *range(30, 80)]).cached_tokens == 0, "another beginning"
    record = TokenRecord()
    for request in (first, second):
        spans = [VersionSpan(0, 0, 30)]
        reply = Generation(
            output_ids=request.output_ids, logprobs=request.logprobs, versions=spans, finish="length", cached_tokens=0
        )
        record.add("id", None, request.input_ids, reply, 1.0)
    assert Rescorer([NANO]).largest_difference(record) < 1e-4


def test_a_prompt_of_several_forward_passes_is_answered_where_no_other_reply_grows(engine: BatchingEngine) -> None:
    done = threading.Event()
    engine.submit(Request([5] * (MAX_PROMPT_TOKENS + 100), Sampling(max_new_tokens=1), done.set))
    assert done.wait(120)


@pytest.mark.parametrize("cap", [None, 50.0])
def test_a_model_that_caps_its_attention_scores_is_refused(cap: float | None) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64, "head_dim": 16}
    config = Gemma2Config(**sizes, num_attention_heads=2, num_key_value_heads=1, attn_logit_softcapping=cap)
    with nullcontext() if cap is None else pytest.raises(ValueError, match="attn_logit_softcapping"):
        use_paged_attention(Gemma2ForCausalLM(config).eval())


def test_more_requests_than_the_cache_holds_all_end(engine: BatchingEngine) -> None:
    assert all(len(request.output_ids) == 60 for request in generate(engine, 120, tokens=60))


def test_a_cache_smaller_than_the_context_bounds_the_context() -> None:
    small = BatchingEngine(NANO, max_total_tokens=256)
    assert small.context_length < 256
    small.start()
    try:
        (request,) = generate(small, 1, tokens=small.context_length - 4)
        assert len(request.output_ids) == small.context_length - 4
    finally:
        small.stop()


def test_retracting_twice_without_progress_loses_nothing(engine: BatchingEngine) -> None:
    done = threading.Semaphore(0)
    requests = [Request([1, 2, i + 3], Sampling(max_new_tokens=40), done.release) for i in range(8)]
    engine.pause("in_place")
    for request in requests:
        engine.submit(request)
    engine.pause("retract")
    engine.pause("retract")
    engine.resume()
    engine.pause("retract")
    engine.pause("retract")
    engine.resume()
    for _ in requests:
        assert done.acquire(timeout=120)
    assert all(len(request.output_ids) == 40 for request in requests)


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


def test_a_request_that_ended_during_the_pause_leaves_no_stale_cache(
    engine: BatchingEngine, versions: list[Path]
) -> None:
    """Its cancellation still waits when the cache is flushed; its KV cache must not come back as a prefix."""
    prompt = [1, *range(20, 80)]
    ended = Request(prompt, Sampling(max_new_tokens=500), lambda: None)
    engine.submit(ended)
    eventually(lambda: bool(ended.output_ids))
    engine.pause("in_place")
    engine.abort(ended)
    engine.pause("retract")
    engine.load_weights(versions[2], "2", flush_cache=True)
    engine.resume()
    try:
        time.sleep(0.2)
        done = threading.Event()
        request = Request(prompt, Sampling(max_new_tokens=10), done.set)
        engine.submit(request)
        assert done.wait(30)
        record = TokenRecord()
        spans = [VersionSpan(2, 0, len(request.output_ids))]
        reply = Generation(output_ids=request.output_ids, logprobs=request.logprobs, versions=spans, finish="length")
        record.add("id", None, prompt, reply, 1.0)
        assert Rescorer(versions[:3]).largest_difference(record) < 1e-4
    finally:
        engine.load_weights(versions[0], "0", flush_cache=True)


@pytest.mark.soak
def test_prompts_that_fill_several_batches_keep_replies_apart(versions: list[Path]) -> None:
    """Long prompts at once: the last of a batch is prefilled in part, and has no token to record."""
    engine = BatchingEngine(NANO)
    engine.start()
    record = TokenRecord()
    try:
        for round_ in range(3):
            done = threading.Semaphore(0)
            prompts = [[1, *((7 * i + 13 * k + round_) % 450 + 9 for k in range(262))] for i in range(14)]
            requests = [Request(prompt, Sampling(max_new_tokens=80), done.release) for prompt in prompts]
            for request in requests:
                engine.submit(request)
            eventually(lambda requests=requests: all(request.output_ids for request in requests))  # type: ignore[misc]
            engine.pause("retract")
            engine.resume()
            for _ in requests:
                assert done.acquire(timeout=120)
            for request in requests:
                spans = [VersionSpan(0, 0, 80)]
                ids, logprobs = request.output_ids, request.logprobs
                reply = Generation(output_ids=ids, logprobs=logprobs, versions=spans, finish="length")
                record.add("id", None, request.input_ids, reply, 1.0)
    finally:
        engine.stop()
    assert Rescorer(versions[:1]).largest_difference(record) < 1e-4
