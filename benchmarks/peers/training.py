"""Tokens a second of a training step on the same sequences: agentrl's trainer, TRL's GRPO step, and a plain transformers loop.

    python benchmarks/peers/training.py [--model nano large] [--group-size 8 1] [--rounds 3] [--side agentrl trl plain]

Questions and solutions of GSM8K give the lengths: every attempt of a group has the group's question and another solution. All
sides start from one model and take the same step again and again: PPO's clipped loss against recorded logprobs, a mean over all
trained tokens, AdamW. Their losses must agree to 1e-4 at every step, which from the second on depends on the steps before.

Each side is a process that takes a step when asked, so that they take turns; TRL's runs in an environment of its own. Tokens are
those of the sequences, neither padded nor shared, on every side; "computed" are those that went through the model.
On a GPU, too: peak memory, and model FLOPs (6·parameters·tokens, attention's left out) as a share of what the device can do.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from installed import PEERS

TRL = PEERS / "trl" / "bin" / "python"
PROBLEMS = Path(__file__).parents[3] / "shared/data/gsm8k-train.jsonl"
SIDES = ("agentrl", "trl", "plain")
TOLERANCE = 1e-4
MICRO_BATCH = 8
"""Sequences of a padded forward pass: TRL's default."""
LR, BETAS, CLIP_LOW, CLIP_HIGH, MAX_NORM = 1e-5, (0.9, 0.95), 0.2, 0.28, 1.0
NOISE = 0.1
"""Deviation of the recorded logprobs from the model's own: some ratios are clipped."""
MOST_TOKENS = 1000
"""Longer sequences are left out: nano has a context of 1,024 tokens."""
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bfloat16, by a part of the GPU's name (NVIDIA's data sheets)."""

Step = Callable[[], tuple[float, int]]
"""Take a training step; returns (loss, tokens computed)."""


@dataclass
class Attempt:
    """A prompt with a reply."""

    prompt: list[int]
    reply: list[int]
    advantage: float
    logprobs: list[float]
    """Of the reply, as it was recorded."""


def device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load(folder: Path) -> Any:
    """The model in float32."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.to(device())


def padded(rows: list[list[Any]], fill: float, *, left: bool = False) -> torch.Tensor:
    """Rows as a matrix."""
    width = max(map(len, rows))
    return torch.tensor([[fill] * (width - len(r)) + r if left else r + [fill] * (width - len(r)) for r in rows])


def reply_logprobs(model: Any, batch: list[Attempt]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """([B, T] logprobs of the tokens after the first, [B, T] which are a reply's, tokens computed) of a padded batch."""
    ids = padded([a.prompt + a.reply for a in batch], 0).to(device())
    mask = padded([[1] * (len(a.prompt) + len(a.reply)) for a in batch], 0).to(device())
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()
    scored = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    of_reply = padded([[0] * (len(a.prompt) - 1) + [1] * len(a.reply) for a in batch], 0).bool().to(device())
    return scored, of_reply, ids.numel()


def micro_batches(batch: list[Attempt]) -> Iterator[list[Attempt]]:
    """Neighbours, as many as are padded together."""
    for start in range(0, len(batch), MICRO_BATCH):
        yield batch[start : start + MICRO_BATCH]


def plain(folder: Path, batch: list[Attempt], steps: int, *, mixed: bool) -> Iterator[Step]:
    """A loop as one writes it with transformers: padded micro-batches, their gradients added up, AdamW."""
    model = load(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, weight_decay=0.0)
    trained = sum(len(a.reply) for a in batch)

    def step() -> tuple[float, int]:
        total, computed = 0.0, 0
        for part in micro_batches(batch):
            with torch.autocast(device().type, torch.bfloat16, enabled=mixed):
                scored, of_reply, tokens = reply_logprobs(model, part)
            computed += tokens
            old = padded([[0.0] * (len(a.prompt) - 1) + a.logprobs for a in part], 0.0).to(device())
            advantages = torch.tensor([[a.advantage] for a in part], device=device())
            ratio = torch.where(of_reply, scored - old, 0.0).exp()
            objective = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantages)
            loss = -(objective * of_reply).sum() / trained
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return total, computed

    for _ in range(steps):
        yield step


def agentrl(folder: Path, batch: list[Attempt], steps: int, *, mixed: bool) -> Iterator[Step]:
    """The trainer as a run has it. The recorded logprobs are of its newest version, so they are the proximal ones too."""
    from agentrl.config import TrainerConfig
    from agentrl.trainer.packing import TrainingSequence
    from agentrl.trainer.policy import Policy

    settings = {
        "precision": "mixed" if mixed else "float32",
        "objective": {"kind": "ppo", "proximal": "interpolate", "clip_low": CLIP_LOW, "clip_high": CLIP_HIGH},
        "importance": {"kind": "none"},
        "optimizer": {"lr": LR, "warmup_steps": 0, "max_grad_norm": MAX_NORM},
    }
    policy = Policy(folder, TrainerConfig.model_validate(settings))

    def sequence(attempt: Attempt) -> TrainingSequence:
        ids = torch.tensor(attempt.prompt + attempt.reply)
        ones, before = torch.ones(len(ids)), len(attempt.prompt)
        return TrainingSequence(
            token_ids=ids,
            loss_mask=torch.arange(len(ids)) >= before,
            behaviour_logprobs=torch.tensor([0.0] * before + attempt.logprobs),
            versions=torch.full_like(ids, policy.version),
            temperatures=ones,
            advantages=attempt.advantage * ones,
            rewards=0 * ones,
            turn_index=torch.zeros_like(ids),
        )

    def step() -> tuple[float, int]:
        result = policy.step([sequence(attempt) for attempt in batch])
        return result.loss, result.computed_tokens

    for _ in range(steps):
        yield step


def trl(folder: Path, batch: list[Attempt], steps: int, *, mixed: bool) -> None:
    """TRL's GRPO trainer with its own loop; only the generation of replies is replaced, by the batch."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Trainer(GRPOTrainer):  # type: ignore[misc, unused-ignore]
        losses: list[float] = []  # noqa: RUF012
        computed = 0

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
            made = {
                "prompt_ids": padded([a.prompt for a in batch], 0, left=True),
                "prompt_mask": padded([[1] * len(a.prompt) for a in batch], 0, left=True),
                "completion_ids": padded([a.reply for a in batch], 0),
                "completion_mask": padded([[1] * len(a.reply) for a in batch], 0),
                "old_per_token_logps": padded([a.logprobs for a in batch], 0.0),
                "advantages": torch.tensor([a.advantage for a in batch]),
                "num_items_in_batch": torch.tensor(sum(len(a.reply) for a in batch)),
            }
            return {name: tensor.to(device()) for name, tensor in made.items()}

        def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
            loss: torch.Tensor = super()._compute_loss(model, inputs)
            self.losses.append(float(loss.detach()))
            self.computed += inputs["prompt_ids"].numel() + inputs["completion_ids"].numel()
            return loss

    class InTurn(TrainerCallback):  # type: ignore[misc, unused-ignore]
        started = 0.0

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            sys.stdin.readline()
            self.started = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            answer(sum(trainer.losses), trainer.computed, self.started)
            trainer.losses, trainer.computed = [], 0

    settings = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=device().type == "cpu",
        bf16=mixed,
        gradient_checkpointing=False,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=len(batch) // MICRO_BATCH,
        num_generations=MICRO_BATCH,
        loss_type="dapo",  # a mean over all tokens
        epsilon=CLIP_LOW,
        epsilon_high=CLIP_HIGH,
        max_grad_norm=MAX_NORM,
        learning_rate=LR,
        lr_scheduler_type="constant",
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=0.0,
        max_steps=steps,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    trainer = Trainer(
        model=load(folder),
        reward_funcs=lambda completions, **columns: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "none"}] * len(batch)),
        processing_class=tokenizer,
        callbacks=[InTurn()],
    )
    trainer.train()


def answer(loss: float, computed: int, started: float) -> None:
    """Tell the parent what a step was."""
    gpu_peak = 0
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        gpu_peak = torch.cuda.max_memory_allocated()
    seconds = time.perf_counter() - started
    peak = gpu_peak or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("step", json.dumps([loss, computed, seconds, peak]), flush=True)


def take_steps(side: str, folder: Path, steps: int, *, mixed: bool) -> None:
    """Be one side: a step for each line of standard input."""
    batch = [Attempt(**fields) for fields in json.loads((folder / "batch.json").read_text())]
    if side == "trl":
        trl(folder, batch, steps, mixed=mixed)
        return
    for step in {"plain": plain, "agentrl": agentrl}[side](folder, batch, steps, mixed=mixed):
        sys.stdin.readline()
        started = time.perf_counter()
        answer(*step(), started)


def make_model(name: str, folder: Path, layers: int, width: int, vocabulary: int) -> Any:
    """Put the nano model, or a random Qwen3 with its tokenizer, into a folder."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from agentrl.models import NANO

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        num_key_value_heads=max(1, width // 128),
        head_dim=64,
        tie_word_embeddings=True,
    )
    random_model: Any = Qwen3ForCausalLM(config)
    model = load(NANO) if name == "nano" else random_model.to(device())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(NANO).save_pretrained(folder)
    return model


@torch.no_grad()
def make_batch(model: Any, folder: Path, problems: Path, count: int, group_size: int) -> list[Attempt]:
    """Write the batch, with recorded logprobs near the model's own."""
    from transformers import AutoTokenizer

    rng, tokenizer = random.Random(0), AutoTokenizer.from_pretrained(folder)
    texts = [json.loads(line) for line in problems.read_text().splitlines()[: 20 * count]]
    questions = [tokenizer.encode(text["question"]) for text in texts]
    solutions = [[*tokenizer.encode(text["answer"]), tokenizer.eos_token_id] for text in texts]
    batch: list[Attempt] = []
    while len(batch) < count:
        question = rng.choice(questions)
        fitting = [s for s in solutions if len(question) + len(s) <= MOST_TOKENS]
        if len(fitting) >= group_size:
            batch += [Attempt(question, s, rng.gauss(0, 1), []) for s in rng.sample(fitting, group_size)]
    for part in micro_batches(batch):
        scored, of_reply, _ = reply_logprobs(model, part)
        for attempt, row, mask in zip(part, scored, of_reply, strict=True):
            attempt.logprobs = [value + rng.gauss(0, NOISE) for value in row[mask].tolist()]
    (folder / "batch.json").write_text(json.dumps([asdict(attempt) for attempt in batch]))
    return batch


@contextmanager
def side_process(side: str, python: Path, folder: Path, steps: int, precision: str) -> Iterator[Callable[[], Any]]:
    """Run a side; yields what has it take a step and returns [loss, tokens computed, seconds, peak memory in bytes]."""
    options = ["--be", side, "--folder", str(folder), "--steps", str(steps), "--precision", precision]
    log = folder / f"{side}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [str(python), __file__, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert process.stdin is not None
    assert process.stdout is not None
    out, ask = process.stdout, process.stdin

    def take_step() -> Any:
        print("step", file=ask, flush=True)
        for line in out:
            if line.startswith("step "):
                return json.loads(line.removeprefix("step "))
        raise SystemExit(f"the side {side} ended: {log.read_text()[-2000:]}")

    try:
        yield take_step
    finally:
        process.kill()
        process.wait()


def compare(args: argparse.Namespace, name: str, group_size: int) -> None:
    """Print a row for each side on one model and one shape of data."""
    with tempfile.TemporaryDirectory(prefix="agentrl-training-") as scratch, ExitStack() as stack:
        folder = Path(scratch)
        model = make_model(name, folder, args.layers, args.width, args.vocabulary)
        parameters = sum(p.numel() for p in model.parameters())
        batch = make_batch(model, folder, args.problems, args.sequences, group_size)
        del model
        takers = {}
        for side in args.side:
            python = args.trl if side == "trl" else Path(sys.executable)
            process = side_process(side, python, folder, args.rounds + 1, args.precision)
            takers[side] = stack.enter_context(process)
        found: dict[str, list[Any]] = {side: [] for side in takers}
        for number in range(args.rounds + 1):
            for side, take_step in takers.items():
                found[side].append(take_step())
            losses = {side: rows[number][0] for side, rows in found.items()}
            if args.precision == "float32" and max(losses.values()) - min(losses.values()) > TOLERANCE:
                raise SystemExit(f"the losses of step {number + 1} differ: {losses}")
    tokens = sum(len(a.prompt) + len(a.reply) for a in batch)
    peak_flops = next((f for part, f in PEAK_FLOPS.items() if part in _device_name()), None)
    for side, rows in found.items():
        speeds = [tokens / seconds for _, _, seconds, _ in rows[1:]]  # the first warms up
        speed, (last, computed, _, memory) = statistics.median(speeds), rows[-1]
        share = f"  {6 * parameters * speed / peak_flops:.1%} of the peak" if peak_flops else ""
        print(
            f"{name:6s} {parameters / 1e6:6.1f} M  groups of {group_size}  {side:8s} {speed:9,.0f} tokens/s"
            f" ({min(speeds):,.0f} to {max(speeds):,.0f})  computed {computed:7,d} of {tokens:7,d}  loss {last:.6f}"
            f"  peak {memory / 2**30:.2f} GiB{share}",
            flush=True,
        )


def _device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def main() -> None:
    """Compare the sides, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["nano", "large"], choices=["nano", "large"])
    parser.add_argument("--group-size", nargs="+", type=int, default=[8, 1], help="attempts that share a prompt")
    parser.add_argument("--side", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument("--sequences", type=int, default=32, help=f"of a step, a multiple of {MICRO_BATCH}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="float32", choices=["float32", "mixed"])
    parser.add_argument("--layers", type=int, default=10, help="of the large model, as --width and --vocabulary")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--problems", type=Path, default=PROBLEMS, help="GSM8K as lines of JSON")
    parser.add_argument("--trl", type=Path, default=TRL, help="the interpreter of TRL's environment")
    parser.add_argument("--be", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.be:
        take_steps(args.be, args.folder, args.steps, mixed=args.precision == "mixed")
        return
    for name in args.model:
        for group_size in args.group_size:
            compare(args, name, group_size)


if __name__ == "__main__":
    main()
