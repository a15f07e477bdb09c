"""Figures of single tokens are those that plain transformers give under the weights before the step, token by token of the record."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from anyio.to_thread import run_sync as in_thread
from transformers import AutoModelForCausalLM

from agentrl.models import NANO
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord, Turn
from agentrl.run.open_run import open_run
from agentrl.store import token_figures
from agentrl.store.batches import TrainedStep
from agentrl.store.rows import from_column
from agentrl.store.store import Store
from agentrl.store.token_figures import SHARE, Columns, has_figures, read_figures
from tests.recorded_run import GROUP_SIZE, TrainerOfRun, batch, record_run, trainer_of

TEMPERATURE = 0.7


def with_branches(record: TokenRecord) -> None:
    """Two replies to the first turn, one of which goes on twice; and a turn that is not trained on. All have one temperature."""
    rng = random.Random(record.turns[0].output_ids[0])
    (first,) = record.turns
    for follows_first, trained in ((True, True), (True, True), (False, True), (True, False)):
        parent = first if follows_first else record.turns[-1]
        ids = [rng.randrange(9, 470) for _ in range(9)]
        reply = Generation(output_ids=ids[4:], logprobs=[-1.0] * 5, versions=[VersionSpan(0, 0, 5)], finish="stop")
        turn = record.add("call", parent, [*parent.token_ids(), *ids[:4]], reply, TEMPERATURE)
        turn.trained = trained


def with_roles(record: TokenRecord) -> None:
    """The same, of two roles that are policies of their own and speak in turn."""
    with_branches(record)
    for index, turn in enumerate(record.turns):
        turn.role = turn.adapter = ("writer", "critic")[index % 2]


@torch.no_grad()
def plain(weights: Path, turn: Turn) -> tuple[list[float], list[float]]:
    """The logprobs and entropies of a reply, by a forward pass of transformers over its path alone."""
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    ids, count = torch.tensor([turn.token_ids()]), len(turn.output_ids)
    logits = model(ids).logits[0, -count - 1 : -1] / turn.temperature
    distribution = torch.distributions.Categorical(logits=logits)
    return distribution.log_prob(ids[0, -count:]).tolist(), distribution.entropy().tolist()


ROLES = {"lora": {"rank": 2, "roles": ["writer", "critic"]}}


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"minibatches": 2}, 2),
        ({"kl": {"kind": "reward", "coef": 0.3}, "tokens_per_pack": 16}, 1),
        ({"advantage": "gae"}, 1),
        (ROLES, 1),
    ],
    ids=["two minibatches", "kl in the reward", "critic", "roles"],
)
def test_they_are_what_plain_transformers_compute_of_every_trained_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], steps: int
) -> None:
    monkeypatch.setattr(token_figures, "SHARE", 1)
    run_dir, finish = tmp_path / "run", with_roles if settings is ROLES else with_branches
    record_run(run_dir, steps=steps, finish=finish, **settings)
    process = TrainerOfRun(run_dir, tmp_path / "weights")
    process.load(None)
    for step in range(1, steps + 1):
        before = NANO if step == 1 else tmp_path / "weights" / f"v{step - 1}"
        answer = process.step_on(batch(step))
        trained = replace(TrainedStep.from_json(answer["trained"]), figures=read_figures(Path(answer["weights"])))
        with Store(run_dir / "store.sqlite") as store:
            store.commit_checkpoint(run_dir / f"step-{step}", step, [trained])
        episodes = [one for one in open_run(run_dir).episodes() if one.step == step]
        moving = [one for one in episodes if one.token_figures is not None]
        assert len(moving) >= len(batch(step)) * (GROUP_SIZE - 1)  # all but those whose advantage is 0
        for episode in moving:
            figures = episode.token_figures
            assert figures is not None
            for index, turn in enumerate(episode.record.turns):
                own = (figures.proximal[index], figures.entropy[index], figures.advantage[index])
                if not turn.trained:
                    assert own == ([None] * 5,) * 3
                    continue
                logprobs, entropies = plain(before, turn)
                assert own[0] == pytest.approx(logprobs, abs=1e-4)
                assert own[1] == pytest.approx(entropies, abs=1e-4)
                assert all(value is not None and math.isfinite(value) for value in own[2])


def test_the_share_is_of_all_episodes_whatever_the_size_of_their_groups() -> None:
    for index in range(8):
        ids = range(1 + index, 8000, 8)
        assert sum(has_figures(one) for one in ids) == pytest.approx(SHARE * len(ids), abs=5)


@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.anyio
async def test_two_ranks_keep_the_figures_that_one_does(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    settings: dict[str, Any] = {"ranks": 2, "tokens_per_pack": 48, "step_timeout_s": 60}
    await in_thread(lambda: record_run(run_dir, steps=3, finish=with_branches, **settings))

    def alone() -> dict[int, Columns]:
        process = TrainerOfRun(run_dir, tmp_path / "alone")
        process.load(None)
        answers = [process.step_on(batch(step)) for step in (1, 2, 3)]
        return read_figures(Path(answers[-1]["weights"]))  # the first ones are of the third step

    expected = await in_thread(alone)
    with anyio.fail_after(150):
        async with trainer_of(run_dir) as trainer:
            weights = await trainer.load(None)
            for step in (1, 2, 3):
                weights, trained, _ = await trainer.step(batch(step), weights.version)
    assert trained.figures.keys() == expected.keys() != set()
    for episode, columns in expected.items():
        for own, other in zip(trained.figures[episode], columns, strict=True):
            assert from_column(own) == pytest.approx(from_column(other), abs=1e-5, nan_ok=True)
