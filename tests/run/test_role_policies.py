"""Runs in which roles are policies of their own, from the first step to what is served of their checkpoint."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl import evaluate
from agentrl.config import RunConfig, load_config
from agentrl.engine.adapters import adapter_folders
from agentrl.errors import ConfigError
from agentrl.evaluation.progress import EvaluationView
from agentrl.models import NANO
from agentrl.rollout.check_start import with_roles
from agentrl.run.audit import audit
from agentrl.run.open_run import open_run
from agentrl.run.run_directory import read_metrics
from agentrl.store.batches import batches
from agentrl.store.store import Store
from agentrl.trainer.sft import fine_tune
from benchmarks import two_roles
from tests import run_program
from tests.real_sglang import sglang_config
from tests.run_program import ends_well, kill_at_step

STEPS = 4
PROGRAM = """
import json, sys
import anyio
from agentrl.config import RunConfig
from agentrl.run.train import train
from agentrl.run.view import RunView

if __name__ == "__main__":
    config = RunConfig.model_validate(json.loads(sys.argv[1]))
    anyio.run(lambda: train(config, resume="resume" in sys.argv, view=RunView(config)))
"""


def configuration(directory: Path, steps: int, **changed: Any) -> RunConfig:
    tasks = directory / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(task) + "\n" for task in two_roles.tasks()))
    config = two_roles.configuration(directory / "run", steps, **changed)
    return config.model_copy(update={"workflow": two_roles.__file__, "tasks": str(tasks)})


def start(directory: Path, config: RunConfig, *words: str) -> subprocess.Popen[str]:
    return run_program.start(directory, PROGRAM, config.model_dump_json(), *words)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_two_roles_learn_opposite_things_and_their_checkpoint_answers_as_they_do(tmp_path: Path) -> None:
    rollout = {"batch_size": 32, "group_size": 8, "max_staleness": 0}
    config = configuration(tmp_path, steps=STEPS, rollout=rollout)
    ends_well(start(tmp_path, config))
    run_dir = tmp_path / "run"
    first, last = read_metrics(run_dir)[0], read_metrics(run_dir)[-1]
    lengths = {name: last[f"role_{name}_reply_tokens_mean"] for name in two_roles.WISHES}
    assert abs(first["role_long_reply_tokens_mean"] - first["role_short_reply_tokens_mean"]) < 8
    assert lengths["long"] > first["role_long_reply_tokens_mean"]
    assert lengths["short"] < first["role_short_reply_tokens_mean"] / 2
    assert lengths["long"] > lengths["short"] + 10
    assert last["role_short_reward_mean"] > first["role_short_reward_mean"]
    for step in read_metrics(run_dir):
        for prefix in ("", "role_long_", "role_short_"):
            assert step[f"{prefix}logprob_mismatch_max_abs"] < 1e-3
        assert step["trained_tokens"] == step["role_long_trained_tokens"] + step["role_short_trained_tokens"]
        assert step["staleness_max"] == 0
    assert audit(run_dir).violations == []
    with Store(run_dir / "store.sqlite", read_only=True) as store:
        (episode, *_) = store.episodes(store.read(batches)[-1].group_ids)
    assert {turn.adapter for turn in episode.record.turns} == set(two_roles.WISHES)

    (*_, checkpoint) = open_run(run_dir).checkpoints
    assert adapter_folders(checkpoint.path).keys() == set(two_roles.WISHES)
    served = load_config((), {}, model={"path": str(checkpoint.path)})  # the roles are those of the checkpoint
    evaluated = anyio.run(
        lambda: evaluate(
            served,
            workflow=two_roles.run,
            tasks=two_roles.tasks()[:16],
            out=tmp_path / "evaluation",
            view=EvaluationView(),
        )
    )
    assert evaluated.failed == 0
    for name, length in lengths.items():
        found = sum(episode.metrics[name] for episode in evaluated.episodes) / len(evaluated.episodes)
        assert found == pytest.approx(length, abs=8)

    with pytest.raises(ConfigError, match="training begins with one model"):
        with_roles(served, training=True)
    with pytest.raises(ConfigError, match="training begins with one model"):
        fine_tune(served.model_copy(update={"run_dir": str(tmp_path / "sft"), "tasks": config.tasks}))
    others = config.model_copy(update={"model": served.model})
    others = others.model_copy(
        update={"trainer": config.trainer.model_validate({"lora": {"rank": 8, "roles": ["judge"]}})}
    )
    with pytest.raises(
        ConfigError, match=r"has adapters of the roles long, short, and `trainer\.lora\.roles` = \['judge'\]"
    ):
        with_roles(others, training=False)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_killed_run_with_workers_goes_on_with_the_adapters_of_its_roles(tmp_path: Path) -> None:
    rollout = {"batch_size": 8, "group_size": 4, "max_staleness": 1, "workers": 1}
    trainer = {"lora": {"rank": 4, "roles": list(two_roles.WISHES)}, "checkpoint": {"every": 1}}
    config = configuration(tmp_path, steps=4, rollout=rollout, trainer=trainer)
    run_dir = tmp_path / "run"
    kill_at_step(start(tmp_path, config), run_dir, 2, within_s=200)
    ends_well(start(tmp_path, config, "resume"))
    steps = read_metrics(run_dir)
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    compared = [step["logprob_mismatch_max_abs"] for step in steps if "logprob_mismatch_max_abs" in step]
    assert compared
    assert max(compared) < 1e-3
    assert audit(run_dir).violations == []


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_two_roles_learn_on_sglang_each_under_its_own_adapter(tmp_path: Path) -> None:
    rollout = {"batch_size": 8, "group_size": 4, "max_staleness": 1}
    config = configuration(tmp_path, steps=3, rollout=rollout, engine=sglang_config(servers=1).model_dump())
    ends_well(start(tmp_path, config))
    steps = read_metrics(tmp_path / "run")
    assert [step["step"] for step in steps] == [1, 2, 3]
    for prefix in ("role_long_", "role_short_"):
        assert max(step[f"{prefix}logprob_mismatch_max_abs"] for step in steps) < 1e-3
    assert audit(tmp_path / "run").violations == []


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_two_ranks_train_the_adapters_of_both_roles(tmp_path: Path) -> None:
    rollout = {"batch_size": 8, "group_size": 4, "max_staleness": 1}
    trainer = {"lora": {"rank": 4, "roles": list(two_roles.WISHES)}, "ranks": 2, "kl": {"kind": "loss", "coef": 0.01}}
    config = configuration(tmp_path, steps=3, rollout=rollout, trainer=trainer)
    ends_well(start(tmp_path, config))
    steps = read_metrics(tmp_path / "run")
    assert max(step["logprob_mismatch_max_abs"] for step in steps) < 1e-3
    assert steps[-1]["role_long_kl_reference"] > 0 < steps[-1]["role_short_kl_reference"]
    assert audit(tmp_path / "run").violations == []


def test_supervised_training_has_no_roles(tmp_path: Path) -> None:
    config = configuration(tmp_path, steps=1)
    with pytest.raises(ConfigError, match=r"`trainer\.lora\.roles` = \['long', 'short'\] are roles of episodes"):
        fine_tune(config)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"trainer": {"lora": {"rank": 4, "roles": ["a", "A"]}}}, "differ in their capitals alone"),
        ({"trainer": {"lora": {"rank": 4, "roles": ["a b"]}}}, "'a b', which is no word"),
        ({"trainer": {"lora": {"rank": 4, "roles": ["kritikerärger"]}}}, "'kritikerärger', which is no word"),
        ({"trainer": {"lora": {"roles": ["a"]}}}, r"trainer\.lora\.rank"),
        (
            {"trainer": {"lora": {"rank": 4, "roles": ["a"]}}, "engine": {"kind": "sglang", "transfer": "broadcast"}},
            "sends neither the adapter of `trainer.lora`",
        ),
    ],
)
def test_roles_that_cannot_be_are_refused_before_anything_starts(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        RunConfig(model={"path": str(NANO)}, **changed)
