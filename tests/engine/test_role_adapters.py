"""Adapters of roles side by side: each reply is of its own role's adapter, token by token, however often all of them change."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import anyio
import pytest
import torch
from anyio.to_thread import run_sync as in_thread
from transformers import AutoModelForCausalLM

from agentrl.config import EngineConfig
from agentrl.engine.adapters import ROLES
from agentrl.engine.client import SGLangEngine
from agentrl.engine.launch import launch_engine
from agentrl.engine.model_adapters import sharing_weights
from agentrl.engine.protocol import Sampling
from agentrl.errors import EngineError
from agentrl.models import NANO
from agentrl.record.tokens import Generation
from tests.components import wait_until
from tests.engine.test_adapter import RANK, save_adapter
from tests.engine.test_launch import server_pids
from tests.engine.test_real_sglang import assert_exact
from tests.real_sglang import sglang_config

pytestmark = pytest.mark.anyio
NAMES = ("writer", "critic")
VERSIONS = 3
Replies = dict[str, list[tuple[list[int], Generation]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], dict[str, list[Path]]]:
    """([version] published weights of both roles, {role: [version] the whole model that does the same})."""
    scratch = tmp_path_factory.mktemp("roles")
    oracles: dict[str, list[Path]] = {name: [] for name in NAMES}
    published = [scratch / f"v{version}" for version in range(VERSIONS)]
    for number, name in enumerate(NAMES):
        for version, folder in enumerate(published):
            own = save_adapter(NANO, scratch / f"{name}-{version}", seed=10 * number + version, scale=0.02)
            shutil.copytree(own / "adapter", folder / ROLES / name)
            oracles[name].append(own / "whole")
    return published, oracles


async def replies_of_both(engine: SGLangEngine, published: list[Path], *, updates: int, tokens: int) -> Replies:
    """Replies of both roles at once, to the same prompts, in one session each, while all adapters change."""
    results: Replies = {name: [] for name in NAMES}
    begun: set[tuple[str, int]] = set()

    async def one(name: str, index: int) -> None:
        prompt, sampling = [1, 2, 3, 4 + index], Sampling(max_new_tokens=tokens)
        said = await engine.generate(prompt, sampling, f"s{index}", lambda _: begun.add((name, index)), adapter=name)
        results[name].append((prompt, said))

    async with anyio.create_task_group() as group:
        for index in range(4):
            for name in NAMES:
                group.start_soon(one, name, index)
        for update in range(updates):
            await wait_until(lambda: len(begun) == 4 * len(NAMES), 60)
            version = 1 + update % (VERSIONS - 1)
            await engine.update_weights(published[version], version)
    return results


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["embedded", "sglang"])
async def test_each_role_is_answered_by_its_own_adapter_with_its_own_logprobs_and_versions(
    kind: str, made: tuple[list[Path], dict[str, list[Path]]], tmp_path: Path
) -> None:
    published, oracles = made
    config = EngineConfig() if kind == "embedded" else await in_thread(lambda: sglang_config(servers=1))
    async with launch_engine(NANO, config, log=tmp_path / "engine.log", lora_rank=RANK, adapters=len(NAMES)) as engine:
        await engine.update_weights(published[0], 0)
        results = await replies_of_both(engine, published, updates=4, tokens=200)
        for name in NAMES:
            assert len(results[name]) == 4
            await assert_exact(results[name], oracles[name])
            assert max(len(generation.versions) for _, generation in results[name]) >= 2
        with pytest.raises(AssertionError):
            await assert_exact(results["writer"], oracles["critic"])

        for stranger in ("judge", ""):
            with pytest.raises(EngineError, match=f"no adapter of the role '{stranger}' is loaded, but critic, writer"):
                await engine.generate([1, 2], Sampling(max_new_tokens=2), "s", adapter=stranger)
        if kind == "sglang":
            (server,) = engine.fleet.in_service()
            models = (await server.get("/v1/models", 30))["data"]
            kept = {model["id"].rsplit("-", 1)[0] for model in models if model["parent"]}
            assert kept == {f"v{version}-{name}" for version in (1, 2) for name in NAMES}, "servers do not fill up"
            return

        # A server that is started again gets the adapters of all roles.
        (pid, *_) = await in_thread(server_pids, engine.serving[0])
        os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: not engine.serving, 40)
        again = await replies_of_both(engine, published, updates=0, tokens=8)
        for name in NAMES:
            assert {span.version for _, said in again[name] for span in said.versions} == {engine.version}
            await assert_exact(again[name], oracles[name])


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["embedded", "sglang"])
async def test_adapters_that_a_server_refuses_and_a_whole_model_leave_none_of_a_past_update(
    kind: str, made: tuple[list[Path], dict[str, list[Path]]], tmp_path: Path
) -> None:
    published, oracles = made
    config = EngineConfig() if kind == "embedded" else await in_thread(lambda: sglang_config(servers=1))
    wrong = await in_thread(shutil.copytree, published[2], tmp_path / "wrong")
    # The last of the two to be loaded: the other has taken its place beside, or instead of, those in use by then.
    (wrong / ROLES / "writer" / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 99, "target_modules": ["q_proj"]}'
    )
    async with launch_engine(NANO, config, log=tmp_path / "engine.log", lora_rank=RANK, adapters=len(NAMES)) as engine:
        await engine.update_weights(published[1], 1)
        for _ in range(3):
            with pytest.raises(EngineError, match="/load_lora_adapter answered 400"):
                await engine.update_weights(wrong, 2)
            kept = await replies_of_both(engine, published, updates=0, tokens=8)
            for name in NAMES:
                assert {span.version for _, said in kept[name] for span in said.versions} == {1}
                await assert_exact(kept[name], oracles[name])

        # Replies that are open when a whole model comes go on under it, without an adapter.
        whole = oracles["writer"][2]
        async with anyio.create_task_group() as group:
            late: list[tuple[list[int], Generation]] = []

            async def reply() -> None:
                said = await engine.generate([1, 2, 3], Sampling(max_new_tokens=200), "open", adapter="writer")
                late.append(([1, 2, 3], said))

            group.start_soon(reply)
            await wait_until(lambda: engine.in_flight > 0, 40)
            await engine.update_weights(whole, 2)
        await assert_exact(late, oracles["writer"])
        plain = [([5, 6], await engine.generate([5, 6], Sampling(max_new_tokens=20), "plain"))]
        await assert_exact(plain, [whole] * 3)


def test_a_copy_that_shares_weights_computes_the_same_and_what_is_put_on_it_is_its_own() -> None:
    from peft import LoraConfig

    first, second = sharing_weights(AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32), 2)
    ids = torch.tensor([[1, 20, 30]])
    with torch.no_grad():
        before = first(ids).logits
        assert torch.equal(second(ids).logits, before)
        second.add_adapter(LoraConfig(r=2, target_modules="all-linear"))
        for name, parameter in second.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
        assert torch.equal(first(ids).logits, before)
        assert not torch.equal(second(ids).logits, before)
