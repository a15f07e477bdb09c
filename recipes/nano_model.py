"""Make the nano model: `python -m recipes.nano_model DIR` (`make nano-model`).

A Qwen3 of 0.9 M parameters with a byte-level vocabulary of its own in which every digit is one token, warm-started by
supervised learning on demonstrations of the calculator workflow. A share of the demonstrators guess the answer
without using the calculator, as a pretrained model would, so reinforcement learning has something to correct.
Everything is seeded: the same machine makes the same weights.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from renderers import Qwen3RendererConfig, create_renderer
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agentrl.envs.calculator_env import TOOL, distinct_tasks, evaluate

VOCABULARY = 640
CONTEXT = 1024
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
DEMONSTRATION_SEED = 20_000_000
"""Far from the seeds of the task files, so that demonstrations are other draws than the training and held-out tasks."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The supervised warm start."""

    steps: int = 700
    batch: int = 32
    lr: float = 3e-3
    guess_share: float = 0.5
    """Share of demonstrations that answer with a guess instead of calling the calculator."""
    seed: int = 0


def demonstration(task: dict[str, Any], rng: random.Random, guess_share: float) -> list[dict[str, Any]]:
    """Return the messages of one demonstrated episode; the assistant's are what the model learns.

    Args:
        task: The problem.
        rng: Where chance comes from.
        guess_share: The chance of a guess in place of a call.

    Returns:
        The messages.
    """
    user = {"role": "user", "content": task["question"]}
    if rng.random() < guess_share:
        wrong = int(task["answer"]) + rng.choice([-1, 1]) * rng.randint(1, 50)
        return [user, {"role": "assistant", "content": str(wrong)}]
    expression = task["expression"]
    call = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
    return [
        user,
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "call", "content": str(evaluate(expression))},
        {"role": "assistant", "content": task["answer"]},
    ]


def build_tokenizer(texts: Iterator[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE over `texts` in which every digit stands alone."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}|\n|[^\S\n]?\p{L}+|[^\S\n]?[^\s\p{L}\p{N}]+|[^\S\n]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",  # noqa: S106
        pad_token="<|endoftext|>",  # noqa: S106
        additional_special_tokens=SPECIAL[1:],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def build_model(seed: int, vocabulary: int) -> Qwen3ForCausalLM:
    """Return a freshly initialised nano Qwen3."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        initializer_range=0.05,
    )
    config.eos_token_id = SPECIAL.index("<|im_end|>")
    config.pad_token_id = SPECIAL.index("<|endoftext|>")
    return Qwen3ForCausalLM(config)


def encode(renderer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> tuple[list[int], list[bool]]:
    """Lay a conversation out exactly as a rollout lays it out.

    Args:
        renderer: The chat format.
        messages: A message of the user, then the assistant's and others' in turn.
        tools: What the assistant is offered.

    Returns:
        ([T] token ids, [T] whether the model writes the token).
    """
    ids: list[int] = []
    mask: list[bool] = []
    prompt = renderer.render_ids(messages[:1], tools=tools, add_generation_prompt=True)
    for position in range(1, len(messages), 2):
        mask += [False] * (len(prompt) - len(ids))
        ids = list(prompt)
        written = _completion(renderer, messages[position])
        ids += written
        mask += [True] * len(written)
        if position + 1 < len(messages):
            bridged = renderer.bridge_to_next_turn(prompt, written, [messages[position + 1]], tools=tools)
            prompt = bridged.token_ids
    return ids, mask


def _completion(renderer: Any, message: dict[str, Any]) -> list[int]:
    tokenizer = renderer._tokenizer
    text = message["content"]
    for call in message.get("tool_calls", []):
        function = call["function"]
        text += f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}\n</tool_call>'
    return list(tokenizer.encode(text + "<|im_end|>", add_special_tokens=False))


def make(directory: Path, recipe: Recipe) -> None:
    """Train the nano model and write it to `directory` as a Hugging Face checkpoint (bfloat16)."""
    torch.set_num_threads(2)
    rng = random.Random(recipe.seed)  # noqa: S311
    tasks = distinct_tasks(30_000, DEMONSTRATION_SEED)
    demonstrations = [demonstration(task, rng, recipe.guess_share) for task in tasks]

    schema = json.dumps(TOOL)
    frame = SYSTEM_FRAME + _CALCULATOR_FRAME + schema
    tokenizer = build_tokenizer(iter([frame] * 200 + [m["content"] for d in demonstrations[:300] for m in d]))
    renderer = create_renderer(tokenizer, Qwen3RendererConfig(thinking_retention="all"))
    model = build_model(recipe.seed, len(tokenizer))
    encoded = [encode(renderer, d, [TOOL]) for d in demonstrations]
    fit(model, encoded, recipe, rng)
    write(directory, model, tokenizer)


def fit(
    model: Qwen3ForCausalLM, encoded: list[tuple[list[int], list[bool]]], recipe: Recipe, rng: random.Random
) -> None:
    """Train the model on encoded demonstrations, the trained tokens only."""
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {len(encoded[0][0])} tokens in the first episode")
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.lr, total_steps=recipe.steps, pct_start=0.1)
    started = time.perf_counter()
    for step in range(recipe.steps):
        batch = rng.sample(encoded, recipe.batch)
        length = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([row + [0] * (length - len(row)) for row, _ in batch])
        mask = torch.tensor([row + [False] * (length - len(row)) for _, row in batch])
        logits = model(input_ids=ids).logits[:, :-1][mask[:, 1:]]
        loss = F.cross_entropy(logits, ids[:, 1:][mask[:, 1:]])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == recipe.steps - 1:
            print(f"step {step:4d}  loss {loss.item():.4f}  {time.perf_counter() - started:5.1f} s", flush=True)


def write(directory: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a Hugging Face checkpoint in bfloat16."""
    directory.mkdir(parents=True, exist_ok=True)
    model.bfloat16().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    size = (directory / "model.safetensors").stat().st_size
    print(f"{directory}: weights of {size:,} bytes")


SYSTEM_FRAME = """system
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
{"name": <function-name>, "arguments": <args-json-object>}
user
assistant
"""
"""What Qwen3's chat format puts around tools: a vocabulary that has seen it spells it in few tokens."""

_CALCULATOR_FRAME = """State the final answer to the following arithmetic problem:
{"name": "calculator", "arguments": {"expression": "1 + 2 - 3"}}
"""


def main() -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m recipes.nano_model", description=__doc__)
    parser.add_argument("directory", type=Path)
    defaults = Recipe()
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--guess-share", type=float, default=defaults.guess_share)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    args = parser.parse_args()
    make(args.directory, Recipe(steps=args.steps, guess_share=args.guess_share, seed=args.seed))


if __name__ == "__main__":
    main()
