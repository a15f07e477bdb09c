"""`agentrl serve` of a checkpoint whose roles have adapters of their own, and what weights it takes afterwards."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import openai
import pytest

from agentrl.config import load_config
from agentrl.engine.adapters import ROLES
from agentrl.errors import ConfigError
from agentrl.models import NANO
from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord
from agentrl.rollout.check_start import with_roles
from tests.engine.test_adapter import save_adapter
from tests.engine.test_real_sglang import assert_exact
from tests.run.test_serve import Service, serving

NAMES = ("writer", "critic")
VERSIONS = itertools.count(1)
"""The versions of the weights that tests give the one service."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two roles; beside it, by role, the whole model that does the same."""
    scratch = tmp_path_factory.mktemp("roles")
    shutil.copytree(NANO, scratch / "step-000002")
    for seed, name in enumerate(NAMES):
        own = save_adapter(NANO, scratch / name, seed=seed, scale=0.02)
        shutil.copytree(own / "adapter", scratch / "step-000002" / ROLES / name)
    return scratch / "step-000002"


@pytest.fixture(scope="module")
def service(checkpoint: Path) -> Iterator[Service]:
    with serving(checkpoint.parent / "kept", checkpoint) as service:
        answers(service, checkpoint, 0)
        yield service


def answers(service: Service, checkpoint: Path, version: int) -> None:
    """Both roles are asked at once, and answered each by its own adapter of a version, token by token."""
    opened = service.ask("POST", "/sessions", {"max_tokens": 12})
    for name in NAMES:
        with openai.OpenAI(base_url=opened["base_url"], api_key=f"{opened['api_key']}.{name}", timeout=40) as client:
            reply = client.completions.create(model=opened["model"], prompt=[1, 20, 30], n=2)
            assert len(reply.choices) == 2
            assert sum(1 for _ in client.completions.create(model=opened["model"], prompt=[1, 20], stream=True)) > 0
    record = TokenRecord.from_json(service.ask("GET", f"/sessions/{opened['id']}/trajectories")["turns"])
    service.ask("DELETE", f"/sessions/{opened['id']}")
    for name in NAMES:
        own = [turn for turn in record.turns if turn.adapter == name]
        assert len(own) == 3
        assert {span.version for turn in own for span in turn.versions} == {version}
        results = [
            (
                turn.token_ids()[: -len(turn.output_ids)],
                Generation(output_ids=turn.output_ids, logprobs=turn.logprobs, versions=turn.versions, finish="stop"),
            )
            for turn in own
        ]
        oracles = [checkpoint.parent / name / "whole"] * (version + 1)
        anyio.run(assert_exact, results, oracles)


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_checkpoint_of_roles_is_served_and_takes_weights_of_its_roles(service: Service, checkpoint: Path) -> None:
    for version in itertools.islice(VERSIONS, 2):
        service.ask("POST", "/weights", {"path": str(checkpoint), "version": version})
        answers(service, checkpoint, version)
    opened = service.ask("POST", "/sessions", {})
    for key in (opened["api_key"], f"{opened['api_key']}.judge"):
        with openai.OpenAI(base_url=opened["base_url"], api_key=key) as client, pytest.raises(openai.BadRequestError):
            client.completions.create(model=opened["model"], prompt="1")
    service.ask("DELETE", f"/sessions/{opened['id']}")


def _without(folder: Path, name: str) -> None:
    (folder / ROLES / "critic" / name).unlink()


def _cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


def _of_another_rank(folder: Path) -> None:
    config = folder / ROLES / "writer" / "adapter_config.json"
    config.write_text(config.read_text().replace('"r": 4', '"r": 2'))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "holds no adapter_config.json": lambda folder: _without(folder, "adapter_config.json"),
    "holds no adapter_model.safetensors": lambda folder: _without(folder, "adapter_model.safetensors"),
    "is damaged": lambda folder: _cut(folder / ROLES / "critic" / "adapter_model.safetensors", 300),
    "roles/critic": lambda folder: _cut(folder / ROLES / "critic" / "adapter_config.json", 30),
    "does not fit the model": _of_another_rank,
    "has adapters of the roles judge, writer, and this service answers the roles critic, writer": lambda folder: (
        folder / ROLES / "critic"
    ).rename(folder / ROLES / "judge"),
    "has adapters of the roles none": lambda folder: shutil.rmtree(folder / ROLES),
}


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("reason", DAMAGES)
def test_weights_that_are_refused_leave_both_roles_answered_as_before(
    reason: str, service: Service, checkpoint: Path, tmp_path: Path
) -> None:
    version = next(VERSIONS)
    service.ask("POST", "/weights", {"path": str(checkpoint), "version": version})
    damaged = tmp_path / "damaged"
    shutil.copytree(checkpoint, damaged)
    DAMAGES[reason](damaged)
    refused = service.ask("POST", "/weights", {"path": str(damaged), "version": next(VERSIONS)}, status=400)
    assert reason in refused["error"]["message"]
    answers(service, checkpoint, version)


@pytest.mark.parametrize("names", [NAMES, NAMES[:1]])
def test_a_checkpoint_that_was_copied_by_half_is_no_checkpoint_of_fewer_roles(
    names: tuple[str, ...], checkpoint: Path, tmp_path: Path
) -> None:
    shutil.copytree(checkpoint, tmp_path / "half")
    for name in names:
        (tmp_path / "half" / ROLES / name / "adapter_config.json").unlink()
    with pytest.raises(ConfigError, match=r"has adapters that cannot be used: .*adapter_config\.json"):
        with_roles(load_config((), {}, model={"path": str(tmp_path / "half")}), training=False)
