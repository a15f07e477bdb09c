"""A run that the nano model answered, with its workflow and tasks in files and a checkpoint that it keeps: what a page may act on."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import torch
from anyio.from_thread import start_blocking_portal
from safetensors.torch import load_file, save_file

from agentrl.config import RunConfig
from agentrl.engine.client import sglang_engine
from agentrl.models import NANO
from agentrl.proxy import ChatFormat, SamplingDefaults, open_proxy
from agentrl.rollout.run_episode import local_runner
from agentrl.rollout.workflow import load_workflow
from agentrl.store.batches import trained_step
from agentrl.store.changes import CloseGroup, InsertEpisode, OpenGroup
from agentrl.store.store import Store
from agentrl.tasks.tasks import GroupTask, episode_seed, group_seed
from agentrl.viewer.act import open_acts
from agentrl.viewer.server import serving

TASK = {"a": 3, "b": 4}
STEP = 1
"""The step of the checkpoint."""
MAX_TOKENS = 12
WORKFLOW = """
async def ask(episode, messages, **how):
    reply = await episode.client.chat.completions.create(model=episode.model, messages=messages, max_tokens=12, **how)
    return {"role": "assistant", "content": reply.choices[0].message.content}

async def run(episode):
    question = [{"role": "user", "content": f"{episode.task['a']} + {episode.task['b']} ="}]
    answer = await ask(episode, question, temperature=0.7)
    await ask(episode, [*question, answer, {"role": "user", "content": "sure?"}])
    await ask(episode, [{"role": "user", "content": "another conversation"}])
    return 0.25
"""


def write_checkpoint(directory: Path) -> Path:
    """The nano model with other weights, as a run keeps it."""
    shutil.copytree(NANO, directory)
    generator = torch.Generator().manual_seed(7)
    tensors = {
        name: tensor.float() * (1 + 0.1 * torch.randn(tensor.shape, generator=generator))
        for name, tensor in load_file(directory / "model.safetensors").items()
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


async def make_acted_run(directory: Path, server_url: str, chat_format: ChatFormat) -> Path:
    """One episode of three calls, the last of another conversation."""
    run_dir, workflow, tasks = directory / "run", directory / "sums.py", directory / "tasks.jsonl"
    run_dir.mkdir()
    workflow.write_text(WORKFLOW)
    tasks.write_text(json.dumps(TASK))
    settings = {"run_dir": str(run_dir), "workflow": str(workflow), "tasks": str(tasks), "model": {"path": str(NANO)}}
    config = RunConfig.model_validate(settings | {"rollout": {"max_tokens": MAX_TOKENS}})
    (run_dir / "config.json").write_text(config.model_dump_json())
    async with (
        sglang_engine([server_url]) as engine,
        open_proxy(engine, chat_format, "nano") as proxy,
        local_runner(load_workflow(workflow), proxy, timeout_s=30, defaults=SamplingDefaults()) as runner,
    ):
        outcome = await runner.run(TASK, episode_seed(0, 0, 0), group_seed(0, 0))
    assert outcome.finished, outcome.error
    with Store(run_dir / "store.sqlite") as store:
        store.begin_restart("tasks", config.model_dump_json())
        opened = OpenGroup(0, 0, 0, 0, GroupTask(0, 0, TASK).digest)
        store.write([opened, InsertEpisode(0, 0, 0, outcome), CloseGroup(0)])
        checkpoint = write_checkpoint(run_dir / f"checkpoints/step-{STEP:06d}")
        store.commit_checkpoint(checkpoint, STEP, [trained_step(STEP, ((0, 1),), [[(0, 0)]], 1)])
    return run_dir


@contextmanager
def acting(run_dir: Path) -> Iterator[str]:
    """Where a page is served that may act on a run."""

    @asynccontextmanager
    async def serve() -> AsyncIterator[str]:
        async with open_acts() as acts, serving([run_dir], acts=acts) as address:
            yield address

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serve()) as address:
        yield address


@torch.no_grad()
def plain_logprobs(model: Any, prompt: list[int], ids: list[int], temperature: float) -> list[float]:
    """log p of ids after a prompt, by transformers alone."""
    logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
    scored = torch.log_softmax(logits / temperature, dim=-1)
    logprobs: list[float] = scored.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
    return logprobs
