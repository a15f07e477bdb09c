"""The whole first prompts of Claude Code, Codex and Gemini CLI, as they send them, on the embedded engine, token by token, and a training step on them.

They are sent by the installed programs when the test runs, since the recordings of `conformance` hold no long texts. The model has the nano model's tokenizer and template, and one small layer with random weights:
54,000 tokens take the nano model itself a minute (`benchmarks/real_agents.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from anyio.to_thread import run_sync as in_thread
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.config import load_config
from agentrl.engine.client import sglang_engine
from agentrl.models import NANO
from agentrl.proxy import ChatFormat, Proxy, load_chat_format, open_proxy
from agentrl.proxy.http_messages import Body, Handle, Response
from agentrl.record.end_reason import EndReason
from agentrl.record.trajectory import TokenRecord
from agentrl.run.run_directory import write_config
from agentrl.store.changes import CloseGroup, InsertEpisode, OpenGroup
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store
from agentrl.workflows.harnesses import HARNESSES
from tests.conftest import start_server, stop_server
from tests.policy_by_prompt import PolicyByPrompt
from tests.proxy.test_agents import CODEX, installed
from tests.record_invariant import Tapped, assert_record_is_what_the_engine_saw
from tests.recorded_run import TrainerOfRun

pytestmark = [pytest.mark.anyio, pytest.mark.soak, pytest.mark.timeout(240)]
CONTEXT = 65_536
REPLY_TOKENS = 8
QUESTION = "Look around, and tell what you see."
LEAST_TOKENS = {"claude-code": 40_000, "codex": 15_000, "gemini": 20_000}
"""Of a whole prompt: about four fifths of what it was on 2026-11-25."""
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Sent:
    """A request with a whole prompt."""

    path: str
    body: dict[str, Any]

    def shortly_answered(self) -> tuple[str, bytes]:
        """The same, for a reply of a few tokens that comes whole."""
        body = {name: value for name, value in self.body.items() if name != "stream"}
        if "messages" in self.path:
            return self.path.partition("?")[0], json.dumps({**body, "max_tokens": REPLY_TOKENS}).encode()
        if "responses" in self.path:
            return self.path, json.dumps({**body, "max_output_tokens": REPLY_TOKENS}).encode()
        config = {**body.get("generationConfig", {}), "maxOutputTokens": REPLY_TOKENS, "topP": 1, "topK": None}
        whole = self.path.partition("?")[0].replace("streamGenerateContent", "generateContent")
        return whole, json.dumps({**body, "generationConfig": config}).encode()


def write_small_model(directory: Path) -> Path:
    """A model of one layer with one head, which takes the longest prompt."""
    directory.mkdir()
    for file in NANO.iterdir():
        if file.name != "model.safetensors":
            shutil.copy(file, directory)
    config = json.loads((NANO / "config.json").read_text())
    config |= {"max_position_embeddings": CONTEXT, "num_hidden_layers": 1, "layer_types": config["layer_types"][:1]}
    config |= {"hidden_size": 32, "intermediate_size": 32, "head_dim": 16}
    config |= {"num_attention_heads": 1, "num_key_value_heads": 1, "dtype": "float32"}
    (directory / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory), dtype=torch.float32)
    model.save_pretrained(directory)
    return directory


async def run(name: str, proxy: Proxy, key: str, home: Path) -> None:
    """Run an agent as its users do, until it has its first answer."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1", "KEY": key}
    await anyio.Path(home).mkdir()
    if name == "claude-code":
        command = [installed("claude"), "-p", QUESTION, "--model", "any", "--dangerously-skip-permissions"]
        environment |= {"ANTHROPIC_BASE_URL": proxy.url, "ANTHROPIC_API_KEY": key}
        environment |= HARNESSES[name].environment
    elif name == "codex":
        await anyio.Path(home, ".codex").mkdir()
        await anyio.Path(home, ".codex", "config.toml").write_text(CODEX.format(url=proxy.url))
        flags = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
        command = [installed("codex"), "exec", *flags, QUESTION]
    else:
        settings = HARNESSES[name].environment["GEMINI_SETTINGS"]
        await anyio.Path(home, ".gemini").mkdir()
        await anyio.Path(home, ".gemini", "settings.json").write_text(settings)
        environment |= {"GEMINI_API_KEY": key, "GOOGLE_GEMINI_BASE_URL": proxy.url}
        command = [installed("gemini"), "--model", "any", "--yolo", "--skip-trust", "--prompt", QUESTION]
    with anyio.fail_after(100):
        done = await anyio.run_process(
            command, cwd=home, env=environment, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
    assert done.returncode == 0, done.stdout.decode()[-4000:]


async def first_prompts(chat_format: ChatFormat, folder: Path) -> dict[str, Sent]:
    """The first request of each agent that offers tools."""
    found: dict[str, Sent] = {}
    names: dict[str, str] = {}

    def around(proxy: Proxy) -> Handle:
        async def handle(method: str, path: str, headers: Mapping[str, str], body: Body) -> Response:
            data = body if isinstance(body, bytes) else await body()
            asked = json.loads(data) if data else {}
            if asked.get("tools"):
                key = next(key for key in names if key in json.dumps(dict(headers)))
                found.setdefault(names[key], Sent(path, asked))
            return await proxy.handle(method, path, headers, data)

        return handle

    engine = PolicyByPrompt(chat_format, lambda _: "I see nothing.", has_grammar=True)
    async with open_proxy(engine, chat_format, "any", middleware=around) as proxy, anyio.create_task_group() as group:
        for name in LEAST_TOKENS:
            key = proxy.open_session().key
            names[key] = name
            group.start_soon(run, name, proxy, key, folder / name)
    assert found.keys() == LEAST_TOKENS.keys()
    return found


@torch.no_grad()
def rescored(model_path: Path, record: TokenRecord) -> list[float]:
    """Logprobs of the sampled tokens, by plain transformers in one pass."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation="sdpa")
    (turn,) = record.turns
    ids = torch.tensor([turn.token_ids()])
    count = len(turn.output_ids)
    logits = model(ids, logits_to_keep=count + 1, use_cache=False).logits[0, :-1].float()
    logprobs = torch.log_softmax(logits / turn.temperature, dim=-1)
    values: list[float] = logprobs.gather(1, ids[0, -count:, None])[:, 0].tolist()
    return values


def step_on(run_dir: Path, model_path: Path, records: list[TokenRecord]) -> dict[str, Any]:
    """Take a training step on a group of episodes, the first of which was right."""
    run_dir.mkdir()
    config = load_config(
        (),
        {},
        run_dir=str(run_dir),
        model={"path": str(model_path)},
        rollout={"group_size": len(records), "batch_size": len(records)},
        trainer={"optimizer": {"lr": 1e-3}, "minibatches": 1},
    )
    write_config(config)
    with Store(run_dir / "store.sqlite") as store:
        store.begin_restart("tasks", config.model_dump_json())
        store.write([OpenGroup(0, 0, 0)])
        for index, record in enumerate(records):
            ended = Outcome(reason=EndReason.FINISHED, reward=float(index == 0), record=record)
            store.write([InsertEpisode(0, index, 0, ended)])
        store.write([CloseGroup(0)])
    process = TrainerOfRun(run_dir, run_dir / "weights")
    process.load(None)
    metrics: dict[str, Any] = process.step_on([0])["metrics"]
    return metrics


async def test_whole_prompts_are_rendered_answered_recorded_and_trained_on(tmp_path: Path) -> None:
    for program in ("claude", "codex", "gemini"):
        installed(program)
    model_path = await in_thread(write_small_model, tmp_path / "model")
    chat_format = await in_thread(load_chat_format, model_path)
    started: list[Any] = []

    async def start() -> None:
        started.extend(await in_thread(start_server, model_path, f"--max-total-tokens={2 * CONTEXT}"))

    async def rescore(record: TokenRecord) -> None:
        (turn,) = record.turns
        assert turn.logprobs == pytest.approx(await in_thread(rescored, model_path, record), abs=TOLERANCE)

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        prompts = await first_prompts(chat_format, tmp_path)
    server, url = started
    records: list[TokenRecord] = []
    async with sglang_engine([url]) as engine, anyio.create_task_group() as rescoring:
        tapped = Tapped(engine)
        async with open_proxy(tapped, chat_format, "any") as proxy:  # type: ignore[arg-type]
            for name, least in LEAST_TOKENS.items():
                session = proxy.open_session()
                path, body = prompts[name].shortly_answered()
                reply = await proxy.handle("POST", path, {"x-api-key": session.key}, body)
                assert reply.status == 200, reply.body[:1000]
                (turn,) = session.record.turns
                text = chat_format.decode(turn.prompt_ids)
                assert len(turn.prompt_ids) > least
                assert QUESTION in text
                shown = prompts[name].body["tools"]
                flat = [one for tool in shown for one in tool.get("functionDeclarations", [tool])]
                offered = [tool.get("name") for tool in flat if tool.get("type", "function") in ("function", "custom")]
                assert len(offered) > 5
                assert all(f'"name": "{tool}"' in text for tool in offered)
                records.append(session.record)
                assert_record_is_what_the_engine_saw(session.record, tapped.by_session[session.key])
                rescoring.start_soon(rescore, session.record)
    assert await in_thread(stop_server, server) == 0
    metrics = await in_thread(step_on, tmp_path / "run", model_path, records)
    sampled = sum(len(turn.output_ids) for record in records for turn in record.turns)
    assert (metrics["sequences"], metrics["trained_tokens"]) == (len(records), sampled)
    assert metrics["logprob_mismatch_max_abs"] < TOLERANCE
    assert metrics["grad_norm"] > 0
