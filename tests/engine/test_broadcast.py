"""Weights by broadcast from a trainer process into real SGLang servers, over gloo."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from anyio.to_thread import run_sync as in_thread
from safetensors.torch import load_file

from agentrl.engine.broadcast import Broadcast
from agentrl.engine.launch import launch_engine
from agentrl.engine.protocol import Sampling
from agentrl.models import NANO
from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord
from agentrl.trainer.weight_sender import WeightGroup, make_buckets
from tests.components import wait_until
from tests.engine.test_launch import server_pids
from tests.real_sglang import sglang_config
from tests.rescoring import Rescorer

pytestmark = pytest.mark.anyio
BUCKET_BYTES = 1 << 20
TOLERANCE = 1e-3
"""Of the largest difference in a reply. Wrong weights, or a KV cache of other weights, differ by 1e-2 and more."""


class Sender:
    """Rank 0 in threads of this process: what the trainer process does for its client."""

    def __init__(self) -> None:
        self.weights: Path = NANO
        self._group: WeightGroup | None = None
        self._buckets: Any = []

    async def join_weight_group(self, *where: Any) -> None:
        self._group = await in_thread(WeightGroup, *where)

    async def weight_buckets(self) -> list[dict[str, Any]]:
        tensors = await in_thread(load_file, self.weights / "model.safetensors")
        self._buckets = make_buckets(tensors.items(), BUCKET_BYTES)
        return [bucket.manifest() for bucket in self._buckets]

    async def send_bucket(self, index: int) -> None:
        assert self._group is not None
        await in_thread(self._group.send, self._buckets[index])


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::UserWarning")
async def test_broadcast_weights_serve_replies_exactly_also_after_a_server_died(
    versions: list[Path], tmp_path: Path
) -> None:
    config = await in_thread(lambda: sglang_config(servers=2))
    results: list[tuple[list[int], Generation]] = []
    sender = Sender()
    async with launch_engine(NANO, config, log=tmp_path / "engine.log") as engine:
        broadcast = Broadcast(engine, sender, "gloo")

        async def one(start: int) -> None:
            prompt = [1, 2, 3, start]
            results.append((prompt, await engine.generate(prompt, Sampling(max_new_tokens=300), f"s{start}")))

        async def update(version: int) -> None:
            sender.weights = versions[version]
            await broadcast.update_weights(versions[version], version)

        await update(1)
        async with anyio.create_task_group() as group:
            for start in range(10, 26):
                group.start_soon(one, start)
            for version in (2, 3, 1):
                await anyio.sleep(0.3)
                await update(version)
        assert broadcast.failures == 0

        dead = engine.serving[0]
        for pid in await in_thread(server_pids, dead):
            os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: dead not in engine.serving, 40)
        await update(2)
        await wait_until(lambda: len(engine.serving) == 2, 300)
        await update(3)
        async with anyio.create_task_group() as group:
            for start in range(30, 34):
                group.start_soon(one, start)
    assert {span.version for _, generation in results[-4:] for span in generation.versions} == {3}
    assert max(len(generation.versions) for _, generation in results) >= 2
    rescorer = await in_thread(Rescorer, versions)
    wrong = []
    for prompt, generation in results:
        record = TokenRecord()
        record.add("id", None, prompt, generation, 1.0)
        if (difference := await in_thread(rescorer.largest_difference, record)) >= TOLERANCE:
            wrong.append((difference, prompt, generation.versions))
    assert wrong == []


def test_buckets_hold_every_byte_within_their_bound() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "a": torch.randn(7, 3, generator=generator),
        "b": torch.randn(5, generator=generator).bfloat16(),
        "c": torch.randn(100, generator=generator),
        "d": torch.tensor([True]),
    }
    buckets = make_buckets(tensors.items(), 120)
    assert sorted(name for bucket in buckets for name in bucket.names) == sorted(tensors)
    for bucket in buckets:
        assert bucket.data.nbytes <= 120 or len(bucket.names) == 1
        offset = 0
        for name, dtype, shape in zip(bucket.names, bucket.dtypes, bucket.shapes, strict=True):
            size = tensors[name].nbytes
            assert offset % tensors[name].element_size() == 0
            received = bucket.data[offset : offset + size].view(getattr(torch, dtype)).reshape(shape)
            assert torch.equal(received, tensors[name])
            offset += size
