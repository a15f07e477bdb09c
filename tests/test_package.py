"""What is shipped, and what importing it costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import agentrl
from agentrl.config import RunConfig, config_fields
from agentrl.models import model_directory

ROOT = Path(__file__).parents[1]


def test_the_wheel_installs_one_package_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in tracked.stdout.decode().splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path / "dist"),
        str(source),
    ]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"agentrl", "agentrl_sdk-0.1.0.dist-info"}
    for part in (
        "episode",
        "proxy/app",
        "envs/calculator_env",
        "sandboxes/__init__",
        "trainer/algorithms/losses",
        "workflows/calculator",
    ):
        assert f"agentrl/{part}.py" in names
    for data in (
        "py.typed",
        "models/nano/model.safetensors",
        "models/nano/tokenizer.json",
        "models/nano_player/model.safetensors",
        "cli/template/environment_test.py",
        "cli/template/run.toml",
        "viewer/export.html",
        "viewer/page/index.html",
        "viewer/page/vendor/uplot.js",
        "workflows/frozen_lake.jsonl",
        "workflows/harnesses.toml",
        "workflows/quickstart.toml",
    ):
        assert f"agentrl/{data}" in names
    assert not [name for name in names if any(part == "tests" or part.startswith("test_") for part in name.split("/"))]


@pytest.mark.parametrize("name", ["nano", "nano_player"])
def test_the_nano_weights_are_small_enough_to_ship(name: str) -> None:
    assert (Path(model_directory(name)) / "model.safetensors").stat().st_size <= 2_000_000


ERRORS = (
    "AgentRLError BadRewardError CheckFailedError CheckpointError ConfigError DiskError EngineError EpisodeError EpisodeTimeoutError NoModelCallError "
    "RewardFunctionError SandboxError SandboxLostError StoreError TaskFileError ToolCallError ToolDefinitionError TooManyFailuresError TrainerError "
    "UsageError WorkerError WorkflowError"
)
"""Those that a user can meet. What the others say is within agentrl, or a kind of one of these."""


def test_the_public_names_are_these() -> None:
    names = "Episode Evaluation Reward Role Rubric Run RunConfig ToolEnv Trajectory evaluate open_run serve tool train"
    assert sorted(agentrl.__all__) == sorted(f"{names} {ERRORS}".split())
    assert set(dir(agentrl)) == {*agentrl.__all__, "__version__"}
    for name in agentrl.__all__:
        value = getattr(agentrl, name)
        assert (value.__name__, value.__module__.split(".")[0]) == (name, "agentrl")
    with pytest.raises(AttributeError, match="no attribute 'Trainer'; its public names are Episode, "):
        _ = agentrl.Trainer


def test_the_names_for_type_checkers_are_the_same() -> None:
    tree = ast.parse((ROOT / "agentrl" / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    places = {alias.name: node.module for node in imported for alias in node.names}
    assert sorted(places) == sorted(agentrl.__all__)
    for name, module in places.items():
        assert getattr(import_module(str(module)), name) is getattr(agentrl, name)


def test_the_distribution_has_a_name_of_its_own() -> None:
    assert version("agentrl-sdk") == agentrl.__version__
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=20)
    pages = [
        ROOT / name for name in tracked.stdout.splitlines() if name.endswith((".md", ".py", ".sh", ".toml", "Makefile"))
    ]
    stranger = re.compile(r"pip install [\"']?agentrl(?!-sdk)\b(?![/\w])")
    assert [str(page) for page in pages if page.is_file() and stranger.search(page.read_text())] == []


IMPORT = (
    "import time; started = time.perf_counter(); import agentrl; took = time.perf_counter() - started\n"
    "import sys; heavy = {'torch', 'openai', 'transformers', 'gymnasium', 'pydantic', 'pandas', 'anyio'}\n"
    "print(took, sorted(heavy & set(sys.modules)), agentrl.__version__)"
)


def imported() -> tuple[float, str]:
    """How long the import took, and what it brought."""
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True, timeout=60)
    took, _, rest = done.stdout.partition(" ")
    return float(took), rest


def test_importing_the_door_brings_nothing_that_is_slow_to_import() -> None:
    _, rest = imported()
    assert rest == f"[] {agentrl.__version__}\n"


def test_the_first_call_of_an_episode_finds_the_client_imported_whole() -> None:
    """openai imports `client.chat` when it is first asked for: on a new machine that would hold the event loop up for a second."""
    script = "import sys, agentrl.rollout.run_episode; print('openai.resources.chat.completions' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout == "True\n"


@pytest.mark.soak
def test_importing_the_door_costs_nearly_nothing() -> None:
    assert min(imported()[0] for _ in range(3)) < 0.3


def test_the_rollout_side_imports_no_torch_and_no_sibling_package() -> None:
    modules = (
        "agentrl.cli.main, agentrl.run.train, agentrl.cli.terminal, agentrl.evaluation.evaluate, agentrl.engine.launch"
    )
    script = (
        f"import sys, {modules}\n"
        "print([m for m in sys.modules if m.split('.')[0] == 'torch'"
        " or m.startswith(('agentrl.envs', 'agentrl.sandboxes', 'agentrl.trainer.', 'agentrl.workflows'))][:5])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.strip() == "[]"


def test_every_option_is_known_and_the_quickstart_uses_only_those() -> None:
    keys: dict[str, list[str]] = {"top": []}
    for key in config_fields():
        section, dot, name = key.name.rpartition(".")
        keys.setdefault(section if dot else "top", []).append(name)
    assert {section: " ".join(names) for section, names in keys.items()} == {
        "top": "workflow tasks run_dir steps seed",
        "model": "path renderer renderer_options",
        "rollout": "batch_size group_size max_staleness window max_concurrent temperature top_p max_tokens "
        "episode_timeout_s retries max_failed_share trajectories drop_uniform_groups workers",
        "engine": "kind servers urls python flags pause_mode transfer",
        "cluster": "address worker server rank",
        "proxy": "host port",
        "sandbox": "backend image memory_mb",
        "trainer": "minibatches tokens_per_pack entropy_coef ranks precision "
        "offload recompute_activations step_timeout_s overlong_tokens",
        "trainer.optimizer": "lr warmup_steps weight_decay max_grad_norm",
        "trainer.objective": "kind proximal clip_low clip_high dual_clip",
        "trainer.importance": "kind max min",
        "trainer.loss_aggregation": "kind length",
        "trainer.advantage": "kind discount gae_lambda critic_lr",
        "trainer.turns": "truncated failed altered_sampling",
        "trainer.kl": "kind coef",
        "trainer.teacher": "url coef",
        "trainer.lora": "rank alpha roles",
        "trainer.checkpoint": "every keep url",
        "data": "order sources columns fields epochs eval_share",
        "eval": "tasks limit every stop_at samples pass_reward temperature",
        "tracking": "trackers",
    }
    for file in ("workflows/quickstart.toml", "workflows/frozen_lake.toml", "workflows/blackjack.toml"):
        RunConfig.model_validate(tomllib.loads((ROOT / file).read_text()))
