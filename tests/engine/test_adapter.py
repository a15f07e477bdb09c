"""LoRA adapters on servers of a trainer's checkpoint: each token is its own adapter's, however often that changes under it."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from anyio.to_thread import run_sync as in_thread
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from agentrl.config import EngineConfig, TrainerConfig
from agentrl.engine.client import sglang_engine
from agentrl.engine.launch import launch_engine
from agentrl.engine.protocol import Sampling
from agentrl.errors import EngineError
from agentrl.models import NANO
from agentrl.record.tokens import Generation
from agentrl.trainer.policy import Policy
from tests.components import wait_until
from tests.engine.test_contract import Server
from tests.engine.test_launch import server_pids
from tests.engine.test_real_sglang import assert_exact, replies_under_updates
from tests.real_sglang import sglang_config
from tests.trainer.test_policy import sequences

pytestmark = pytest.mark.anyio
RANK, ALPHA = 4, 8


def save_adapter(base: Path, path: Path, seed: int, scale: float, targets: Any = "all-linear") -> Path:
    """An adapter of `base`, and beside it, as an oracle, the whole model that does the same: W + (α/r)·B·A."""
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.add_adapter(LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = scale * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(path / "adapter")
    weights = {name: tensor.float() for name, tensor in load_file(base / "model.safetensors").items()}
    saved = load_file(path / "adapter" / "adapter_model.safetensors")
    for name, high in saved.items():
        if "lora_B" in name:
            own = name.removeprefix("base_model.model.").replace(".lora_B", "")
            weights[own] = weights[own] + ALPHA / RANK * high @ saved[name.replace("lora_B", "lora_A")]
    (path / "whole").mkdir()
    save_file(weights, path / "whole" / "model.safetensors")
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the trainer, two steps away from the nano model: what the servers serve."""
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-3, "warmup_steps": 0}))
    for _ in range(2):
        policy.step(sequences(policy))
    path = tmp_path_factory.mktemp("base") / "step-000002"
    policy.save(path, NANO)
    return path


@pytest.fixture(scope="module")
def adapters(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Versions 0 to 3."""
    return [save_adapter(checkpoint, tmp_path_factory.mktemp(f"a{v}"), seed=v, scale=0.01 * v) for v in range(4)]


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["embedded", "sglang"])
async def test_replies_go_on_under_the_adapter_of_each_update_and_say_which(
    kind: str, checkpoint: Path, adapters: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig() if kind == "embedded" else await in_thread(lambda: sglang_config(servers=1))
    loaded, oracles = [path / "adapter" for path in adapters], [path / "whole" for path in adapters]
    async with launch_engine(checkpoint, config, log=tmp_path / "engine.log", lora_rank=RANK) as engine:
        await engine.update_weights(loaded[0], 0)
        results = await replies_under_updates(engine, loaded, updates=5, replies=8, tokens=200)
        assert max(len(generation.versions) for _, generation in results) >= 3
        await assert_exact(results, oracles)

        # A request that comes so late that its adapter is unloaded, and its files gone, is answered under the current one.
        short_lived = await in_thread(shutil.copytree, loaded[1], tmp_path / "short_lived")
        await engine.update_weights(short_lived, 1)
        (server,) = engine.fleet.in_service()
        in_time = server.generate

        async def late(*args: Any, **options: Any) -> Generation:
            monkeypatch.setattr(server, "generate", in_time)
            for version in (2, 3):
                await engine.update_weights(loaded[version], version)
            await in_thread(shutil.rmtree, short_lived)
            return await server.generate(*args, **options)

        monkeypatch.setattr(server, "generate", late)
        answered = [([7, 8], await engine.generate([7, 8], Sampling(max_new_tokens=20), "late"))]
        assert [span.version for span in answered[0][1].versions] == [3]
        await assert_exact(answered, oracles)

        if kind == "sglang":
            models = (await server.get("/v1/models", 30))["data"]
            kept = [model["id"].split("-")[0] for model in models if model["parent"]]
            assert sorted(kept) == ["v2", "v3"], "servers do not fill up with adapters"
            return

        # A server that is started again gets the adapter, not the model alone.
        (pid, *_) = await in_thread(server_pids, engine.serving[0])
        os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: not engine.serving, 40)
        again = [([5, 6], await engine.generate([5, 6], Sampling(max_new_tokens=20), "again"))]
        assert again[0][1].versions[0].version == engine.version
        await assert_exact(again, oracles)


@pytest.mark.soak
async def test_a_server_without_lora_says_how_to_start_it(sglang_url: str, adapters: list[Path]) -> None:
    async with sglang_engine([sglang_url]) as engine:
        with pytest.raises(EngineError, match="--enable-lora"):
            await engine.update_weights(adapters[1] / "adapter", 1)
        assert (await engine.generate([1], Sampling(max_new_tokens=2), "s")).output_ids


@pytest.mark.slow
async def test_the_embedded_server_computes_each_request_with_its_adapter_and_refuses_what_names_one_unloaded(
    checkpoint: Path, adapters: list[Path], tmp_path: Path
) -> None:
    other = await in_thread(lambda: save_adapter(checkpoint, tmp_path, 9, 0.02, targets=["q_proj", "v_proj"]))
    async with (
        launch_engine(checkpoint, EngineConfig(), log=tmp_path / "engine.log") as engine,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http,
    ):
        server = Server(http, engine.serving[0])

        async def ask(adapter: str | None, status: int = 200, prompt: Any = (1, 20)) -> Any:
            params = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
            body = {"input_ids": list(prompt), "sampling_params": params, "return_logprob": True, "lora_path": adapter}
            return await server.post("/generate", body, status)

        async def load(name: str, path: Path, status: int = 200) -> Any:
            return await server.post("/load_lora_adapter", {"lora_name": name, "lora_path": str(path)}, status)

        base = await ask(None)
        assert "not loaded: one" in (await ask("one", status=400))["error"]["message"]
        await load("one", adapters[3] / "adapter")
        one = await ask("one")
        assert one["meta_info"]["output_token_logprobs"] != base["meta_info"]["output_token_logprobs"]
        assert "already exists" in (await load("one", adapters[3] / "adapter", status=400))["error_message"]

        await load("two", other / "adapter")  # of other layers
        two = await ask("two")
        for _ in range(2):
            replies = [await ask(name) for name in ("one", "two", None)]
            assert [r["meta_info"]["output_token_logprobs"] for r in replies] == [
                r["meta_info"]["output_token_logprobs"] for r in (one, two, base)
            ]
        assert (await ask("one", prompt=range(40)))["meta_info"]["cached_tokens"] == 0
        await server.post("/unload_lora_adapter", {"lora_name": "one"})
        assert "not loaded: one" in (await ask("one", status=400))["error"]["message"]
        await load("one", other / "adapter")  # another of the same name does not go on from what that one computed
        assert (await ask("one", prompt=range(40)))["meta_info"]["cached_tokens"] == 0
        await load("three", adapters[3] / "adapter")
        assert (await ask("three"))["meta_info"]["output_token_logprobs"] == one["meta_info"]["output_token_logprobs"]

        # What is no adapter, or fits another model, leaves the model as it is.
        assert "adapter_config.json" in (await load("four", tmp_path, status=400))["error_message"]
        narrow = tmp_path / "narrow"
        await in_thread(_cut, adapters[1] / "adapter", narrow)
        assert "does not fit the model" in (await load("five", narrow, status=400))["error_message"]
        assert (await ask(None))["meta_info"]["output_token_logprobs"] == base["meta_info"]["output_token_logprobs"]
        await load("six", adapters[3] / "adapter")
        assert (await ask("six"))["output_ids"] == one["output_ids"]
        for name in ("one", "two", "three", "six"):
            await server.post("/unload_lora_adapter", {"lora_name": name})
        assert (await ask(None))["output_ids"] == base["output_ids"]


def _cut(source: Path, target: Path) -> None:
    target.mkdir()
    (target / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
    tensors = load_file(source / "adapter_model.safetensors")
    save_file({name: t[..., :-1].contiguous() for name, t in tensors.items()}, target / "adapter_model.safetensors")
