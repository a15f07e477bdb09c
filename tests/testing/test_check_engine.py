"""`check_engine`: each kind of server passes the contract, and an engine that breaks a clause is told which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.engine.client import sglang_engine
from agentrl.engine.protocol import PauseMode
from agentrl.errors import CheckFailedError, EngineError
from agentrl.models import NANO
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.testing import check_engine

pytestmark = pytest.mark.anyio
PROMPT = [1, 20, 30, 40]
SOAK = [pytest.mark.soak, pytest.mark.timeout(180)]


def token_logprobs(prompt: list[int], output: list[int], temperature: float) -> Sequence[float]:
    model = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        scored = torch.log_softmax(model(torch.tensor([prompt + output])).logits[0] / temperature, -1)
    return [float(scored[len(prompt) - 1 + index, token]) for index, token in enumerate(output)]


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_each_kind_of_server_keeps_the_contract(any_server_url: str, versions: list[Path]) -> None:
    async with sglang_engine([any_server_url]) as engine:
        await check_engine(
            engine, PROMPT, checkpoints=(versions[0], versions[1]), token_logprobs=token_logprobs, max_tokens=300
        )
    # The server is other tests' too.
    update = {"model_path": str(versions[0]), "weight_version": "0"}
    async with aiohttp.ClientSession() as http:
        async with http.post(f"{any_server_url}/update_weights_from_disk", json=update) as response:
            assert response.status == 200


class Broken:
    """A real engine, but for what a subclass breaks."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def generate(self, *args: Any, **options: Any) -> Generation:
        generation: Generation = await self.engine.generate(*args, **options)
        return self.changed(generation)

    def changed(self, generation: Generation) -> Generation:
        return generation


class PositiveLogprobs(Broken):
    def changed(self, generation: Generation) -> Generation:
        return replace(generation, logprobs=[0.5] * len(generation.logprobs))


class NamesOtherVersions(Broken):
    def changed(self, generation: Generation) -> Generation:
        return replace(generation, versions=[VersionSpan(7, 0, len(generation.output_ids))])


class ScalesLogprobs(Broken):
    def changed(self, generation: Generation) -> Generation:
        return replace(generation, logprobs=[1.1 * logprob for logprob in generation.logprobs], top_logprobs=[])


class IgnoresTemperature(Broken):
    async def generate(self, ids: Any, sampling: Any, *args: Any, **options: Any) -> Generation:
        generation: Generation = await self.engine.generate(ids, replace(sampling, temperature=1.0), *args, **options)
        return generation


class DoesNotPause(Broken):
    async def pause(self, mode: PauseMode) -> None:
        pass


class Refuses(Broken):
    async def generate(self, *args: Any, **options: Any) -> Generation:
        raise EngineError("the kettle is on")


class Hangs(Broken):
    async def health(self) -> None:
        await anyio.sleep(60)


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (PositiveLogprobs, r"a reply is not sound: .*logprob"),
        (NamesOtherVersions, r"engine.version is \d+, and the tokens of a reply name the versions \[7\]"),
        pytest.param(ScalesLogprobs, r"a logprob differs from that of a forward pass by|is not sound", marks=SOAK),
        pytest.param(IgnoresTemperature, "two replies at temperature 0 differ", marks=SOAK),
        pytest.param(DoesNotPause, "a pause holds replies: a reply came while the engine was paused", marks=SOAK),
        pytest.param(Refuses, "EngineError: the kettle is on", marks=SOAK),
        pytest.param(Hangs, "health: it took longer than 5 s", marks=SOAK),
    ],
)
async def test_a_broken_clause_is_named(server_url: str, kind: type[Broken], complaint: str) -> None:
    async with sglang_engine([server_url]) as engine:
        with pytest.raises(CheckFailedError, match=complaint):
            await check_engine(
                kind(engine), PROMPT, token_logprobs=token_logprobs, max_tokens=40, timeout_s=5 if kind is Hangs else 60
            )
