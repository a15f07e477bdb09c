"""Configuration: sources and their order, and errors that name the key and the remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.config import RunConfig, load_config
from agentrl.config.run import check_training
from agentrl.errors import ConfigError, UsageError


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('steps = 3\ntasks = "a"\n[trainer.optimizer]\nlr = 1e-3\nwarmup_steps = 7\n')
    config = load_config(file, {"trainer.optimizer.lr": "2e-4", "engine.urls": '["http://a"]'}, tasks="b")
    optimizer = config.trainer.optimizer
    assert (config.steps, config.tasks, optimizer.lr, optimizer.warmup_steps) == (3, "b", 2e-4, 7)
    assert config.engine.urls == ["http://a"]
    assert load_config((), {"model.path": "some/dir"}).model.path == "some/dir"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"trainer.lrr": "1"},
            r"trainer\.lrr = 1: unknown key; did you mean trainer\.optimizer\.lr\?",
        ),
        ({"steps": "0"}, r"steps = 0: .*greater than or equal to 1"),
        ({"rollout.batch_size": "30"}, r"batch_size = 30 is not a multiple of group_size = 8; use 24 or 32"),
        (
            {"trainer.importance": "drop"},
            r"trainer\.importance: Input tag 'drop' found using 'kind' does not match any of the expected tags: 'truncate', 'mask'",
        ),
    ],
)
def test_a_wrong_value_is_named(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config((), overrides)


def test_a_file_that_is_missing_or_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*none\.toml"):
        load_config(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("steps = = 1")
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*broken\.toml: Invalid value \(at line 1"):
        load_config(broken)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ["[rolout]\nbatch_size = 8\n"],
            r"^FOLDER/0\.toml:1: rolout: unknown key; did you mean rollout\?$",
        ),
        (
            ["steps = 2\n", "[rollout]\n\nmax_token = 1\n"],
            r"^FOLDER/1\.toml:3: rollout\.max_token = 1: unknown key; did you mean rollout\.max_tokens\?$",
        ),
        (
            ["[trainer.optimiser]\nlr = 1\n"],
            r"^FOLDER/0\.toml:1: trainer\.optimiser: unknown key; did you mean trainer\.optimizer\?$",
        ),
        (
            ['[[data.sources]]\ntasks = "a"\nwieght = 2\n'],
            r"^FOLDER/0\.toml:3: data\.sources\.0\.wieght = 2: unknown key; did you mean data\.sources\.0\.weight\?$",
        ),
        (["steps = 0\n", "seed = 1\n"], r"^FOLDER/0\.toml:1: steps = 0: "),
        (["steps = 1\n", "steps = 0\n"], r"^FOLDER/1\.toml:1: steps = 0: "),
        (['[trainer]\nobjective = "ppp"\n'], r"^FOLDER/0\.toml:2: trainer\.objective: Input tag 'ppp' "),
        (["steps = 1\n", "[rollout]\nbatch_size = 7\n"], r"^FOLDER/1\.toml:1: rollout: batch_size = 7 is not"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_of_that_file(files: list[str], message: str, tmp_path: Path) -> None:
    for number, content in enumerate(files):
        (tmp_path / f"{number}.toml").write_text(content)
    with pytest.raises(ConfigError, match=message.replace("FOLDER", re.escape(str(tmp_path)))):
        load_config([tmp_path / f"{number}.toml" for number in range(len(files))])


def test_what_is_wrong_in_an_option_is_said_of_no_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("steps = 1\n[rollout]\ngroup_size = 8\n")
    for key, value in {"steps": "0", "rollout.batch_size": "7"}.items():
        with pytest.raises(ConfigError) as refused:
            load_config(file, {key: value})
        assert str(file) not in str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"data": {"sources": [{"tasks": "a.jsonl", "wieght": 2}]}},
            r"^data\.sources\.0\.wieght = 2: unknown key; did you mean data\.sources\.0\.weight\?$",
        ),
        ({"data": {"sources": ["a.jsonl"]}}, r'^data\.sources\.0 = "a\.jsonl": '),
        (
            {"model": {"pth": "nano"}},
            r"^model\.pth = .nano.: unknown key; did you mean model\.path\?$",
        ),
        ({"steps": "many"}, r'^steps = "many": '),
        ({"engine": {"flags": {"a": 1}, "urls": ["http://a"]}}, r"^engine: flags go to servers that are started"),
    ],
)
def test_a_configuration_built_in_python_is_refused_in_the_same_words(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(**values)


@pytest.mark.anyio
@pytest.mark.parametrize("call", [agentrl.train, agentrl.evaluate, agentrl.serve])
@pytest.mark.parametrize("given", [{"model": "nano"}, "run.toml", Path("run.toml"), None])
async def test_what_is_no_configuration_is_refused_with_how_to_make_one(call: Any, given: Any) -> None:
    with pytest.raises(UsageError, match=rf"^{call.__name__} takes an agentrl\.RunConfig, and not .*RunConfig\(model="):
        await call(given)


def test_a_config_survives_its_own_json() -> None:
    config = load_config((), {"trainer.optimizer.lr": "3e-4", "rollout.window": "4"})
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_several_files_are_read_in_turn_key_by_key(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text("steps = 3\n[engine]\nservers = 2\npause_mode = 'abort'\n")
    second.write_text('[engine]\nkind = "sglang"\nservers = 1\n[engine.flags]\ndtype = "bfloat16"\n')
    config = load_config([first, second], {"engine.flags.tp-size": "2", "engine.flags.enable-lora": "true"})
    assert (config.steps, config.engine.servers, config.engine.pause_mode) == (3, 1, "abort")
    assert config.engine.flags == {"dtype": "bfloat16", "tp-size": 2, "enable-lora": True}


def test_a_model_by_its_name_alone_is_a_section_that_later_sources_add_to(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text('model = "nano"\n')
    second.write_text('[model]\nrenderer = "qwen3"\n')
    config = load_config([first, second], {"model.renderer_options.enable_thinking": "false"})
    assert (config.model.path, config.model.renderer) == ("nano", "qwen3")
    assert config.model.renderer_options == {"enable_thinking": False}


def test_a_text_is_kept_for_a_key_that_holds_text() -> None:
    config = load_config((), {"run_dir": "2026", "eval.tasks": "true", "model.path": "1e-3", "steps": "3"})
    assert (config.run_dir, config.eval.tasks, config.model.path, config.steps) == ("2026", "true", "1e-3", 3)
    assert load_config((), {"model.path": '"1e-3"'}).model.path == "1e-3", "text in quotes is TOML too"


def test_broadcast_needs_sglang() -> None:
    with pytest.raises(ConfigError, match='kind = "sglang"'):
        load_config(overrides={"engine.transfer": "broadcast"})


def test_a_group_of_one_needs_an_advantage_that_compares_with_nobody() -> None:
    one = {"rollout.group_size": "1", "rollout.batch_size": "4"}
    for advantage in ("grpo", "dr_grpo", "reinforce_pp_baseline"):
        with pytest.raises(
            ConfigError, match=rf'`rollout\.group_size` = 1 leaves `trainer\.advantage` = "{advantage}" nothing'
        ):
            check_training(load_config(overrides={**one, "trainer.advantage": advantage}))
    for advantage in ("gae", "rloo", "reinforce_pp"):
        check_training(load_config(overrides={**one, "trainer.advantage": advantage}))
    taught = {**one, "trainer.advantage": "dr_grpo", "trainer.teacher.url": "http://teacher"}
    check_training(load_config(overrides=taught))


def test_a_complaint_about_a_url_does_not_show_its_password() -> None:
    with pytest.raises(ConfigError, match=r"engine\.urls") as refused:
        load_config(overrides={"engine.urls": "http://someone:s3cr3t@host:30000"})
    assert "s3cr3t" not in str(refused.value)


def test_values_add_to_what_a_file_says_of_their_section(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[rollout]\ngroup_size = 7\nbatch_size = 21\n[model.renderer_options]\nthinking = false\n")
    config = load_config(file, rollout={"batch_size": 14}, model="elsewhere")
    assert (config.rollout.group_size, config.rollout.batch_size, config.model.path) == (7, 14, "elsewhere")


def test_a_run_that_would_mask_every_reply_for_its_own_top_p_is_refused() -> None:
    check_training(load_config())
    check_training(load_config(overrides={"rollout.temperature": 0.7}))
    with pytest.raises(
        ConfigError, match=r"`rollout.top_p` = 0.9 .*nothing would be trained on.*`rollout.top_p` = 1, or \"train\""
    ):
        check_training(load_config(overrides={"rollout.top_p": 0.9}))
    check_training(load_config(overrides={"rollout.top_p": 0.9, "trainer.turns.altered_sampling": "train"}))


def test_a_run_that_is_to_end_by_an_evaluation_needs_held_out_tasks_and_an_interval() -> None:
    ended = {"eval.every": 5, "eval.stop_at": 0.9}
    with pytest.raises(ConfigError, match=r"`eval.every` needs held-out tasks: set `eval.tasks` or `data.eval_share`"):
        check_training(load_config(overrides=ended))
    with pytest.raises(ConfigError, match=r"`eval.stop_at` = 0.9 .*`eval.every` = 5 evaluates every fifth step"):
        check_training(load_config(overrides={"eval.tasks": "held_out.jsonl", "eval.stop_at": 0.9}))
    check_training(load_config(overrides={"data.eval_share": 0.1, **ended}))
