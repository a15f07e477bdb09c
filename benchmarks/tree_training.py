"""A training step on prefix trees, against one sequence for every branch and one for every call, in one run.

    python benchmarks/tree_training.py [--rounds 3] [--hidden 128] [--layers 2] [--episodes 2]

Four shapes of data: episodes of ten turns with a tool; groups of eight one-turn attempts at a task with a long prompt; agents that go
back and try something else; and episodes as long as AReaL's tau2 example must have for the 10 times fewer FLOPs that its documentation
gives (and 7 times less time; it gives no lengths), for which the ratios in closed form are printed too. "Computed" counts the tokens of the forward pass; each way trains on the same
tokens. A random Qwen3, float32, one forward and backward pass; the figures are medians of rounds that take the ways in turn.
`--episodes` takes the first few of each shape alone.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.config import TrainerConfig
from agentrl.trainer.algorithms.losses import policy_loss
from agentrl.trainer.model.packed_model import PackedModel
from agentrl.trainer.packing import Pack, TrainingSequence, first_fit_decreasing, pack_sequences, prefix_tree

BUDGET = 8192
VOCABULARY = 1024
CONFIG = TrainerConfig()
Call = tuple[list[int], list[int]]
"""(what a call was sent, what it said)."""


def text(rng: random.Random, length: int) -> list[int]:
    """Random tokens."""
    return [rng.randrange(VOCABULARY) for _ in range(length)]


def conversation(rng: random.Random, prompt: list[int], turns: int) -> list[Call]:
    """An episode without branches: replies of about 80 tokens, tool results of about 120."""
    calls: list[Call] = []
    sent = prompt
    for _ in range(turns):
        said = text(rng, rng.randint(40, 120))
        calls.append((sent, said))
        sent = sent + said + text(rng, rng.randint(60, 180))
    return calls


def tool_episodes(rng: random.Random) -> list[list[Call]]:
    """Two tasks, eight attempts of ten turns each, one system prompt of 600 tokens."""
    system = text(rng, 600)
    return [conversation(rng, system + task, 10) for task in [text(rng, 100) for _ in range(2)] for _ in range(8)]


def groups(rng: random.Random) -> list[list[Call]]:
    """Eight tasks with prompts of 1,000 tokens, eight answers of about 300 each."""
    return [
        [(task, text(rng, rng.randint(200, 400)))] for task in [text(rng, 1000) for _ in range(8)] for _ in range(8)
    ]


def branching(rng: random.Random) -> list[list[Call]]:
    """Eight episodes; each goes back three times to a point on its way and does something else."""
    system = text(rng, 600)
    episodes = []
    for _ in range(8):
        calls = conversation(rng, system + text(rng, 100), 6)
        for _ in range(3):
            sent, said = rng.choice(calls)
            calls += conversation(rng, sent + said + text(rng, 60), 3)
        episodes.append(calls)
    return episodes


TAU2_PROMPT, TAU2_TURNS, TAU2_SAID, TAU2_TOLD = 1000, 16, 80, 120
"""Tokens of the system prompt, turns, tokens of a reply and of what follows it."""


def tau2(rng: random.Random) -> list[list[Call]]:
    """Four attempts at one task, in which all replies have one length."""
    system, episodes = text(rng, TAU2_PROMPT), []
    for _ in range(4):
        sent, calls = system, []
        for _ in range(TAU2_TURNS):
            calls.append((sent, text(rng, TAU2_SAID)))
            sent = [*sent, *calls[-1][1], *text(rng, TAU2_TOLD)]
        episodes.append(calls)
    return episodes


def closed_form(model: PackedModel, episodes: int) -> str:
    """The ratios of one sequence a call to the tree for `tau2`: of tokens, of attention's products, and of FLOPs.

        by call    e·Σ n_k, e·Σ n_k²/2 with n_k = P + k·s + (k−1)·t, k = 1..n      e episodes, prompt P, reply s, tool t
        tree       P + e·(n_n − P), P²/2 + e·(n_n² − P²)/2                        what is shared once, each token with its ancestors
        FLOPs      6·N·tokens + 12·layers·width·products                         N parameters beside the embedding

    (Kaplan et al. 2020, arXiv 2001.08361, table 1, forward and backward.)
    """
    prompt, said, told = TAU2_PROMPT, TAU2_SAID, TAU2_TOLD
    lengths = [prompt + k * said + (k - 1) * told for k in range(1, TAU2_TURNS + 1)]
    by_call = episodes * sum(lengths), episodes * sum(n * n for n in lengths) / 2
    tree = prompt + episodes * (lengths[-1] - prompt), (prompt**2 + episodes * (lengths[-1] ** 2 - prompt**2)) / 2
    config = model.model.config
    parameters = sum(p.numel() for p in model.model.base_model.layers.parameters())
    width = config.num_attention_heads * config.head_dim
    flops = [6 * parameters * t + 12 * config.num_hidden_layers * width * products for t, products in (by_call, tree)]
    return f"tokens {by_call[0] / tree[0]:.2f}, attention {by_call[1] / tree[1]:.2f}, FLOPs {flops[0] / flops[1]:.2f}"


def sequence(ids: list[int], trained: set[int]) -> TrainingSequence:
    """A training sequence with numbers that do not matter."""
    ones = torch.ones(len(ids))
    mask = torch.tensor([t in trained for t in range(len(ids))])
    zeros = torch.zeros(len(ids), dtype=torch.long)
    return TrainingSequence(torch.tensor(ids), mask, -5 * ones, zeros, ones, ones, ones, zeros)


def by_call(episodes: list[list[Call]]) -> list[TrainingSequence]:
    """Every call a sequence of its own."""
    return [
        sequence(sent + said, set(range(len(sent), len(sent) + len(said))))
        for calls in episodes
        for sent, said in calls
    ]


def by_branch(episodes: list[list[Call]]) -> list[TrainingSequence]:
    """Every path of a record a sequence; a token that several share is trained on in the first."""
    made = []
    for calls in episodes:
        whole = [sent + said for sent, said in calls]
        leaves = [path for path in whole if not any(other[: len(path)] == path for other in whole if other is not path)]
        done: set[tuple[int, ...]] = set()
        for leaf in leaves:
            trained: set[int] = set()
            for sent, said in calls:
                if leaf[: len(sent) + len(said)] == sent + said and tuple(sent + said) not in done:
                    done.add(tuple(sent + said))
                    trained |= set(range(len(sent), len(sent) + len(said)))
            made.append(sequence(leaf, trained))
    return made


def unshared(sequences: list[TrainingSequence]) -> list[Pack]:
    """Packs in which every sequence is computed for itself."""
    bins = first_fit_decreasing([len(s) for s in sequences], BUDGET)
    return [_side_by_side([prefix_tree([sequences[i]]) for i in members]) for members in bins]


def _side_by_side(packs: list[Pack]) -> Pack:
    offsets = torch.tensor([0, *map(len, packs)]).cumsum(0).tolist()
    columns = {
        name: torch.cat([getattr(p, name) for p in packs])
        for name in (
            "token_ids",
            "position_ids",
            "targets",
            "behaviour_logprobs",
            "versions",
            "temperatures",
            "advantages",
            "rewards",
            "turn_index",
        )
    }
    return Pack(
        **columns,
        subtree_end=torch.cat([p.subtree_end + offset for p, offset in zip(packs, offsets, strict=False)]),
        source=torch.cat([p.source + offset for p, offset in zip(packs, offsets, strict=False)]),
        sequence_index=torch.cat([p.sequence_index + number for number, p in enumerate(packs)]),
        truncated_end=torch.full((len(packs),), -1),
        episodes=torch.full((len(packs),), -1),
        sequence_count=len(packs),
    )


def step(model: PackedModel, packs: list[Pack]) -> tuple[float, float]:
    """(seconds, loss) of a forward and backward pass over all packs."""
    model.zero_grad()
    started, total = time.perf_counter(), 0.0
    for batch in packs:
        scored = model(batch).logprobs
        rest = (batch.behaviour_logprobs, batch.advantages, batch.sequence_map, CONFIG)
        loss = policy_loss(scored, scored.detach(), *rest)[0].sum()
        loss.backward()
        total += float(loss.detach())
    return time.perf_counter() - started, total


def main() -> None:
    """Print a table row for each shape and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--episodes", type=int)
    args = parser.parse_args()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=args.hidden,
        intermediate_size=3 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64,
        num_key_value_heads=max(1, args.hidden // 128),
        head_dim=64,
    )
    model = PackedModel(Qwen3ForCausalLM(config))
    print("data            way         sequences  computed  ratio  s a step  ratio")
    for name, make in (
        ("tool episodes", tool_episodes),
        ("groups of 8", groups),
        ("branching", branching),
        ("as tau2", tau2),
    ):
        episodes = make(random.Random(0))[: args.episodes]
        branches = by_branch(episodes)
        ways = {
            "tree": (len(branches), pack_sequences(branches, BUDGET)),
            "by branch": (len(branches), unshared(branches)),
            "by call": (len(calls := by_call(episodes)), unshared(calls)),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        losses = {}
        for round_ in range(args.rounds + 1):
            for way, (_, packs) in ways.items():
                seconds, losses[way] = step(model, packs)
                if round_:  # the first warms up
                    times[way].append(seconds)
        if max(losses.values()) - min(losses.values()) > 1e-4 * abs(losses["tree"]):
            raise SystemExit(f"the losses differ: {losses}")
        computed = {way: sum(map(len, packs)) for way, (_, packs) in ways.items()}
        seconds_of = {way: statistics.median(taken) for way, taken in times.items()}
        for way, (count, _) in ways.items():
            print(
                f"{name:15s} {way:11s} {count:9d} {computed[way]:9,d} {computed[way] / computed['tree']:6.2f}"
                f" {seconds_of[way]:9.2f} {seconds_of[way] / seconds_of['tree']:6.2f}"
            )
        if make is tau2:
            print("by call, in closed form: " + closed_form(model, len(episodes)))


if __name__ == "__main__":
    main()
