"""Every legal configuration survives being printed as TOML and read again, and being stored in a run directory and read again."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, Le, Lt, MinLen
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from agentrl.cli.configuration import toml_of
from agentrl.config.load import config_of, load_config
from agentrl.config.run import RunConfig, config_text
from agentrl.config.section import Section, sections_of
from agentrl.errors import StoreError
from agentrl.run.run_directory import read_config, write_config

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
MANY = 10_000


def values_of(hint: Any, bounds: list[Any]) -> st.SearchStrategy[Any]:
    """Values of a type, within the bounds of its field."""
    if get_origin(hint) is not None and hasattr(hint, "__metadata__"):
        inner, *more = get_args(hint)
        return values_of(inner, [*bounds, *(bound for one in more for bound in getattr(one, "metadata", [one]))])
    low = max((one.ge if isinstance(one, Ge) else one.gt for one in bounds if isinstance(one, Ge | Gt)), default=-MANY)
    high = min((one.le if isinstance(one, Le) else one.lt for one in bounds if isinstance(one, Le | Lt)), default=MANY)
    if hint is int:
        return st.integers(int(low), int(high))
    if hint is float:
        without = {"exclude_min": any(isinstance(one, Gt) for one in bounds)} | {
            "exclude_max": any(isinstance(one, Lt) for one in bounds)
        }
        return st.floats(float(low), float(high), **without)
    if hint is str:
        return TEXTS.filter(bool) if any(isinstance(one, MinLen) for one in bounds) else TEXTS
    if hint is bool:
        return st.booleans()
    if hint is Any:
        return st.one_of(st.booleans(), st.integers(-MANY, MANY), TEXTS, st.lists(st.booleans(), max_size=2))
    if hint is type(None):
        return st.none()
    if isinstance(hint, type) and issubclass(hint, Section):
        return section_of(hint)
    arguments = get_args(hint)
    match get_origin(hint):
        case origin if origin is list:
            least = max((one.min_length for one in bounds if isinstance(one, MinLen)), default=0)
            return st.lists(values_of(arguments[0], []), min_size=least, max_size=3)
        case origin if origin is dict:
            return st.dictionaries(TEXTS.filter(bool), values_of(arguments[1], []), max_size=2)
    if arguments and all(isinstance(one, str) for one in arguments):
        return st.sampled_from(arguments)
    return st.one_of(*(values_of(one, bounds) for one in arguments))


def values_of_field(field: FieldInfo) -> st.SearchStrategy[Any]:
    sections = sections_of(field)
    if sections:
        given_ones = st.one_of(*map(section_of, sections))
        return given_ones if type(None) not in get_args(field.annotation) else st.none() | given_ones
    return values_of(field.annotation, list(field.metadata))


def section_of(section: type[Section]) -> st.SearchStrategy[dict[str, Any]]:
    """Some keys of a section, and all that it needs."""
    needed = {name: values_of_field(field) for name, field in section.model_fields.items() if field.is_required()}
    others = {name: values_of_field(field) for name, field in section.model_fields.items() if not field.is_required()}
    if "kind" in others and len(section.model_fields["kind"].annotation.__args__) > 0:  # type: ignore[union-attr]
        needed["kind"] = others.pop("kind")
    return st.fixed_dictionaries(needed, optional=others)


def legal(content: dict[str, Any]) -> RunConfig | None:
    """The configuration, unless keys in it do not go together: whether those do is the rules' to say."""
    try:
        return RunConfig.model_validate(content)
    except ValidationError as error:
        if {problem["type"] for problem in error.errors()} <= {"value_error"}:
            return None
        raise


@settings(max_examples=50)
@given(section_of(RunConfig))
def test_every_legal_configuration_survives_toml_and_the_run_directory(content: dict[str, Any]) -> None:
    # Keys of one section may not go together; then the others are looked at.
    legal_ones = {name: value for name, value in content.items() if legal({name: value}) is not None}
    config = legal(legal_ones) or legal({"trainer": legal_ones.get("trainer", {})})
    assert config is not None
    printed = tomllib.loads(toml_of(config.model_dump()))
    again = load_config(**printed)
    assert again == config
    assert tomllib.loads(toml_of(again.model_dump())) == printed
    assert config_of(json.loads(config_text(config)) | {"run_dir": config.run_dir}) == config


def test_a_run_directory_holds_the_configuration_of_its_run(tmp_path: Path) -> None:
    trainer = {"objective": "gspo", "lora": {"rank": 4}, "kl": {"kind": "loss", "coef": 0.1}, "advantage": "gae"}
    stored = load_config(run_dir=str(tmp_path), trainer=trainer)
    write_config(stored)
    assert read_config(tmp_path) == stored
    assert read_config(tmp_path, {"trainer.objective": "cispo"}).trainer.objective.kind == "cispo"


def test_a_run_directory_of_another_version_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"steps": 3, "trainer": {"lr": 1e-4, "objective": "ppo", "clip_low": 0.2}}')
    with pytest.raises(
        StoreError, match=r"is none of this version of agentrl \(trainer\.lr = 0\.0001: unknown key"
    ) as error:
        read_config(tmp_path)
    assert "begin a new run whose `model.path` is" in str(error.value)
