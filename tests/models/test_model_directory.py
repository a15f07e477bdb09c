"""Models by the id that they have on the hub, from a cache of this machine: no network is used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config import RunConfig, load_config
from agentrl.errors import ConfigError
from agentrl.models import NANO, model_directory, model_name
from agentrl.models.model_directory import is_hub_id

pytestmark = pytest.mark.slow

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CHECK = (
    "from agentrl.config import RunConfig; from agentrl.rollout.check_start import with_model; import sys;"
    "print(with_model(RunConfig(model=sys.argv[1])).model.path)"
)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache of the hub that holds the nano model as `some-org/Nano-1B`, laid out as huggingface_hub does."""
    model = tmp_path / "cache" / "models--some-org--Nano-1B"
    shutil.copytree(NANO, model / "snapshots" / COMMIT)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    return tmp_path / "cache"


def found(model: str, cache: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """huggingface_hub reads its variables when it is imported: the model is looked for in a process of its own."""
    environment = {**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", CHECK, model]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


def test_a_model_in_the_cache_is_used_offline(cache: Path, tmp_path: Path) -> None:
    done = found("some-org/Nano-1B", cache, tmp_path)
    snapshot = cache / "models--some-org--Nano-1B" / "snapshots" / COMMIT
    assert done.stdout.strip() == str(snapshot), done.stderr
    assert model_name(str(snapshot)) == "Nano-1B"


def test_one_that_nobody_has_is_refused_with_its_name(cache: Path, tmp_path: Path) -> None:
    done = found("some-org/Nano-2B", cache, tmp_path)
    assert done.returncode == 1
    assert (
        "ConfigError: `model.path` = 'some-org/Nano-2B' is no directory, and no model that the Hugging Face hub gives"
        in done.stderr
    )


def test_a_directory_goes_before_the_hub(cache: Path, tmp_path: Path) -> None:
    shutil.copytree(NANO, tmp_path / "some-org" / "Nano-1B")
    assert found("some-org/Nano-1B", cache, tmp_path).stdout.strip() == str(tmp_path / "some-org" / "Nano-1B")


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_the_command_line_takes_an_id(cache: Path, tmp_path: Path, server_url: str) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "workflow.py").write_text(
        "async def run(episode):\n"
        "    asked = [{'role': 'user', 'content': 'hi'}]\n"
        "    await episode.client.chat.completions.create(model=episode.model, messages=asked, max_tokens=2)\n"
        "    return float(episode.model == 'Nano-1B')\n"
    )
    words = ["eval", "workflow.py", "--tasks", "tasks.jsonl", "--model", "some-org/Nano-1B", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "agentrl", *words, "--engine.urls", f'["{server_url}"]'],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert '"mean_reward": 1.0' in done.stdout


@pytest.mark.parametrize("path", ["", "nano", "a/b/c", "/a/b", "./a", "../a", "runs/../x", "a b/c"])
def test_what_has_another_form_is_no_id(path: str) -> None:
    assert not is_hub_id(path)


def test_the_models_that_ship_are_known_by_name() -> None:
    assert model_directory("nano") == str(NANO)
    assert model_name(model_directory("nano_player")) == "nano_player"


def test_a_model_alone_is_short_for_its_path(tmp_path: Path) -> None:
    assert RunConfig.model_validate({"model": "nano"}) == RunConfig.model_validate({"model": {"path": "nano"}})
    (tmp_path / "run.toml").write_text('model = "nano"\n')
    config = load_config(tmp_path / "run.toml", {"model.renderer": "qwen3"})
    assert (config.model.path, config.model.renderer) == ("nano", "qwen3")


def test_a_path_that_is_none_is_refused_with_the_checkpoints_beside_it(tmp_path: Path) -> None:
    from agentrl.rollout.check_start import with_model

    for name in ("step-000020", "step-000030", "step-000040.partial"):
        (tmp_path / name).mkdir()
    kept = f"is not a directory; {tmp_path} holds step-000020, step-000030$"
    for path, remedy in {"no/such/directory/at/all": "hf download", f"{tmp_path}/step-000010": kept}.items():
        with pytest.raises(ConfigError, match=remedy):
            with_model(RunConfig.model_validate({"model": path}))
    with pytest.raises(ConfigError, match=r"`model\.path` is not set"):
        with_model(RunConfig())
