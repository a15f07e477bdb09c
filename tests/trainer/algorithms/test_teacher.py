"""On-policy distillation from real servers."""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer

import pytest
import torch

from agentrl.config.trainer import TeacherConfig, TrainerConfig
from agentrl.errors import TrainerError
from agentrl.models import NANO
from agentrl.trainer.algorithms.teacher import with_teacher_logprobs
from agentrl.trainer.algorithms.token_advantages import with_distillation
from agentrl.trainer.model.tree_attention import eager_attention
from agentrl.trainer.packing import TrainingSequence, pack_sequences
from agentrl.trainer.policy import Policy
from tests.trainer.random_trees import random_tree

PROMPTS, NEW_TOKENS = 64, 12


@torch.no_grad()
def sampled(policy: Policy, generator: torch.Generator) -> list[TrainingSequence]:
    """Sequences that the policy itself samples, at temperature 1."""
    ids = torch.randint(9, 470, (PROMPTS, 8), generator=generator)
    scored = []
    for _ in range(NEW_TOKENS):
        # The head has more rows than the tokenizer has words.
        with eager_attention(policy.model):
            logits = policy.model(input_ids=ids, use_cache=False).logits
        logprobs = torch.log_softmax(logits[:, -1, :470], -1)
        drawn = torch.multinomial(logprobs.exp(), 1, generator=generator)
        scored.append(logprobs.gather(1, drawn))
        ids = torch.cat([ids, drawn], 1)
    behaviour = torch.cat([torch.zeros(PROMPTS, 8), *scored], 1)
    size = ids.shape[1]
    mask, zeros = torch.arange(size) >= 8, torch.zeros(size)
    versions = torch.where(mask, policy.version, -1)
    return [
        TrainingSequence(
            row, mask, known, versions, torch.ones(size), zeros, zeros, torch.zeros(size, dtype=torch.long)
        )
        for row, known in zip(ids, behaviour, strict=True)
    ]


def gap(policy: Policy, teacher: Policy, sequences: list[TrainingSequence]) -> float:
    """Mean log p − log teacher on the policy's own samples."""
    with torch.no_grad():
        (batch,) = pack_sequences(sequences, 100_000)
        return float((policy.logprobs(batch) - teacher.logprobs(batch)).mean())


@pytest.mark.soak
@pytest.mark.parametrize("dialect", ["", "/v1"])
def test_a_teacher_says_what_the_model_gives_to_each_token(sglang_url: str, dialect: str) -> None:
    url = sglang_url + dialect
    teacher = Policy(NANO, TrainerConfig())
    sequences = sampled(teacher, torch.Generator().manual_seed(2))[:20]
    (own,) = pack_sequences(with_teacher_logprobs(sequences, url, 60), 100_000)
    with torch.no_grad():
        assert own.teacher_logprobs is not None
        assert float((own.teacher_logprobs - teacher.logprobs(own)).abs().max()) < 1e-3


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_the_policy_moves_to_its_teacher_on_its_own_samples(sglang_url: str) -> None:
    config = TrainerConfig(optimizer={"lr": 3e-4, "warmup_steps": 0}, teacher={"url": sglang_url}, advantage="dr_grpo")
    teacher, student = Policy(NANO, TrainerConfig()), Policy(NANO, config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in student.model.parameters():
            parameter.mul_(1 + 0.15 * torch.randn(parameter.shape, generator=generator))
    first = sampled(student, generator)
    before = gap(student, teacher, first)
    for _ in range(16):
        student.step(with_teacher_logprobs(sampled(student, generator), sglang_url, 60))
    assert before > 0.3
    assert gap(student, teacher, sampled(student, generator)) < 0.6 * before


def test_a_token_is_worth_what_the_teacher_thinks_of_it() -> None:
    policy = Policy(NANO, TrainerConfig())
    sequences = sampled(policy, torch.Generator().manual_seed(1))
    (batch,) = pack_sequences(sequences, 100_000)
    config = TeacherConfig(url="http://127.0.0.1:1", coef=0.5)
    assert with_distillation(batch, batch.behaviour_logprobs, config) is batch
    taught = [TrainingSequence(**{**vars(s), "teacher_logprobs": s.behaviour_logprobs + 2.0}) for s in sequences]
    (batch,) = pack_sequences(taught, 100_000)
    worth = with_distillation(batch, batch.behaviour_logprobs - 1.0, config).advantages
    assert torch.allclose(worth, torch.full_like(worth, 1.5), atol=1e-5)


def test_a_teacher_that_does_not_answer_is_an_error_that_says_what_it_must_be(dead_proxy: None) -> None:
    sequences = sampled(Policy(NANO, TrainerConfig()), torch.Generator().manual_seed(1))
    with pytest.raises(
        TrainerError, match=r"`trainer.teacher.url` = http://127\.0\.0\.1:1 gave no logprobs: ConnectError"
    ):
        with_teacher_logprobs(sequences[:1], "http://127.0.0.1:1", 5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.5, None, "x"])
def test_what_a_teacher_says_that_is_no_logprob_is_asked_for_again_and_never_trained_on(bad: object) -> None:
    asked = 0
    spoiled_replies = 2

    class Teacher(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal asked
            asked += 1
            ids = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input_ids"]
            scored: list[list[object]] = [[None, ids[0], None], *([-1.0, token, None] for token in ids[1:])]
            if asked <= spoiled_replies:
                scored[-1][0] = bad
            body = json.dumps({"meta_info": {"input_token_logprobs": scored}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    sequences = sampled(Policy(NANO, TrainerConfig()), torch.Generator().manual_seed(1))[:1]
    with HTTPServer(("127.0.0.1", 0), Teacher) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://someone:s3cr3t@127.0.0.1:{server.server_port}"
            (taught,) = with_teacher_logprobs(sequences, url, 10)
            assert taught.teacher_logprobs is not None
            assert taught.teacher_logprobs.tolist() == [0.0] + [-1.0] * (len(sequences[0].token_ids) - 1)
            asked, spoiled_replies = 0, 99
            with pytest.raises(TrainerError, match="the logprob of token 19 is") as refused:
                with_teacher_logprobs(sequences, url, 10)
            assert asked == 3
            assert "s3cr3t" not in str(refused.value)
        finally:
            server.shutdown()
            thread.join(10)


@pytest.mark.parametrize("trickles", [False, True], ids=["silent", "trickles"])
@pytest.mark.parametrize("dialect", ["", "/v1"])
def test_a_teacher_that_hangs_is_an_error_within_its_time(trickles: bool, dialect: str) -> None:
    ended = threading.Event()

    class Hangs(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with contextlib.suppress(OSError):
                while trickles and not ended.wait(0.02):
                    self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            ended.wait()

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    sequences = random_tree(random.Random(1), depth=1)[:2] * 20
    with ThreadingHTTPServer(("127.0.0.1", 0), Hangs) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with pytest.raises(
                TrainerError, match=r"did not give the logprobs of 40 sequences within 0\.4 s.*trainer\.step_timeout_s"
            ):
                with_teacher_logprobs(sequences, f"http://127.0.0.1:{server.server_port}{dialect}", 0.4)
        finally:
            ended.set()
            server.shutdown()
            thread.join(10)
