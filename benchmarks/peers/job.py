"""The job that every system of `time_to_reward.py` gets, and the judge of what it has learned: the model, the tasks, the held-out reward."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import torch
from arithmetic import evaluate, reward
from safetensors.torch import load, load_file, save_file

from agentrl.envs.calculator_env import TOOL, distinct_tasks
from agentrl.models import NANO

MAX_CALLS = 4
MAX_TOKENS = 64


def write_model(folder: Path) -> Path:
    """Write nano so that transformers 4 reads it as well as 5, in float32."""
    shutil.copytree(NANO, folder)
    changes: dict[str, dict[str, Any]] = {
        "config.json": {"dtype": "float32", "rope_theta": 10000.0},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
    }
    for name, new in changes.items():
        values = json.loads((folder / name).read_text()) | new
        if special := values.pop("extra_special_tokens", None):
            values["additional_special_tokens"] = special
        (folder / name).write_text(json.dumps(values))
    weights = {key: value.float() for key, value in load_file(NANO / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def write_tasks(path: Path, held_out: int) -> list[dict[str, Any]]:
    """Write 4,000 tasks to train on; returns others that are held out."""
    tasks = distinct_tasks(held_out + 4000, seed=1)
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks[held_out:]))
    return tasks[:held_out]


def load_policy(model: Path, checkpoint: Path) -> Any:
    """The policy of a checkpoint: a folder with a whole model, or an archive with a LoRA adapter of `model`."""
    from transformers import AutoModelForCausalLM

    if checkpoint.is_dir():
        return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    policy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with tarfile.open(checkpoint) as archive:
        files = {Path(member.name).name: archive.extractfile(member) for member in archive if member.isfile()}
        content = {name: file.read() for name, file in files.items() if file}
    config, adapter = json.loads(content["adapter_config.json"]), load(content["adapter_model.safetensors"])
    for name, down in adapter.items():
        if "lora_A" in name:
            up = adapter[name.replace("lora_A", "lora_B")]
            layer = policy.get_submodule(name.removeprefix("base_model.model.").partition(".lora_A")[0])
            layer.weight.data += config["lora_alpha"] / config["r"] * (up @ down)
    return policy


@torch.no_grad()
def held_out_reward(model: Path, checkpoint: Path, tasks: list[dict[str, Any]]) -> float:
    """The mean reward of one sampled episode a task, at temperature 1 and from a fixed seed."""
    from renderers import Qwen3RendererConfig, create_renderer
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    renderer: Any = create_renderer(tokenizer, Qwen3RendererConfig())
    policy, end = load_policy(model, checkpoint), tokenizer.eos_token_id
    torch.manual_seed(0)
    question = [[{"role": "user", "content": task["question"]}] for task in tasks]
    prompts = {
        number: list(renderer.render_ids(messages, tools=[TOOL], add_generation_prompt=True))
        for number, messages in enumerate(question)
    }
    rewards = dict.fromkeys(prompts, 0.0)
    for _ in range(MAX_CALLS):
        if not prompts:
            break
        for number, reply in sample(policy, prompts, end).items():
            text = tokenizer.decode(reply, skip_special_tokens=False).removesuffix("<|im_end|>")
            if "<tool_call>" not in text or reply[-1] != end:
                rewards[number] = reward(text, tasks[number]["answer"])
                del prompts[number]
                continue
            message = {"role": "tool", "tool_call_id": "call", "content": _result(text)}
            bridged = renderer.bridge_to_next_turn(prompts[number], reply, [message], tools=[TOOL])
            prompts[number] = list(bridged.token_ids)
    return sum(rewards.values()) / len(rewards)


def _result(text: str) -> str:
    """What the calculator says to a reply with a call."""
    try:
        call = json.loads(text.partition("<tool_call>")[2].partition("</tool_call>")[0])
        return evaluate(call["arguments"]["expression"])
    except (ValueError, KeyError, TypeError) as error:
        return f"error: {error}"


def sample(policy: Any, prompts: dict[int, list[int]], end: int) -> dict[int, list[int]]:
    """A sampled reply to each prompt, with its end."""
    width = max(map(len, prompts.values()))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts.values()])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts.values()])
    made = policy.generate(
        input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=MAX_TOKENS
    )
    replies: dict[int, list[int]] = {}
    for number, row in zip(prompts, made[:, width:].tolist(), strict=True):
        replies[number] = row[: row.index(end) + 1] if end in row else row
    return replies
