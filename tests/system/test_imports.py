"""A package that is imported for later is loaded when it is used, however that is; and who talks about tokens loads no torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from agentrl.models import NANO
from agentrl.system.imports import imported_later, load_file, module_alone

LATE, HOLDER = "package_for_later", "holder_of_a_package"


@pytest.fixture
def holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that has imported a package, for later, of which loading takes a while."""
    (tmp_path / LATE).mkdir()
    (tmp_path / LATE / "__init__.py").write_text("import time\nfrom . import part\ntime.sleep(0.1)\nvalue = 7\n")
    (tmp_path / LATE / "part.py").write_text("value = 8\n")
    (tmp_path / f"{HOLDER}.py").write_text(f"import {LATE}\ndef value(): return {LATE}.value\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with imported_later(LATE):
        module = import_module(HOLDER)
    assert not [name for name in sys.modules if name.partition(".")[0] == LATE]
    yield module
    for name in [name for name in sys.modules if name.partition(".")[0] in (LATE, HOLDER)]:
        del sys.modules[name]


def by_its_name(holder: ModuleType) -> int:
    package = import_module(LATE)
    assert holder.value() == 7
    return int(package.value)


def by_a_part(holder: ModuleType) -> int:
    assert import_module(f"{LATE}.part").value == 8
    return int(holder.value())


def by_threads(holder: ModuleType) -> int:
    start = threading.Barrier(8)

    def ask(_: int) -> int:
        start.wait()
        return int(holder.value())

    with ThreadPoolExecutor(8) as pool:
        (value,) = set(pool.map(ask, range(8)))
    return value


def again_for_later(holder: ModuleType) -> int:
    with imported_later(LATE):
        assert import_module(f"{LATE}.part").value == 8
        assert import_module(LATE).value == 7
    return int(holder.value())


@pytest.mark.parametrize("use", [by_its_name, by_a_part, by_threads, again_for_later])
def test_who_uses_it_finds_it(holder: ModuleType, use: Callable[[ModuleType], int]) -> None:
    assert use(holder) == 7
    package = sys.modules[LATE]
    assert vars(package)["value"] == 7
    assert vars(holder)[LATE] is package


def test_looking_through_the_modules_loads_nothing(holder: ModuleType) -> None:
    held = vars(holder)[LATE]
    assert (held.__name__, Path(held.__file__).name, held.__spec__.name) == (LATE, "__init__.py", LATE)
    assert LATE not in sys.modules


def test_what_is_loaded_or_not_installed_is_as_ever() -> None:
    with imported_later("json"):
        assert import_module("json") is json
    with imported_later("no_such_package_anywhere"):
        with pytest.raises(ModuleNotFoundError, match="no_such_package_anywhere"):
            import_module("no_such_package_anywhere")


def test_a_module_alone_runs_no_package_and_leaves_none_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package_in_part" / "inner"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("raise RuntimeError('the whole package is loaded')\n")
    (package.parent / "beside.py").write_text("value = 7\n")
    (package / "wanted.py").write_text("from package_in_part.beside import value\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = module_alone("package_in_part.inner.wanted")
    assert module.value == 7
    assert not [name for name in sys.modules if name.startswith("package_in_part")]
    with pytest.raises(RuntimeError, match="whole package"):
        import_module("package_in_part.inner.wanted")
    assert module_alone("json.decoder") is sys.modules["json.decoder"], "which is loaded already"


TOKENS = """
import sys
from agentrl.engine.model_facts import vocabulary_of
from agentrl.proxy import load_chat_format
for model in sys.argv[1:]:
    chat_format = load_chat_format(model)
    assert "hello" in chat_format.decode(chat_format.render([{"role": "user", "content": "hello"}], []).ids), model
    assert vocabulary_of(model) == 475, model
    assert not [name for name in sys.modules if name.partition(".")[0] == "torch"], model
"""
MODEL = """
from transformers import AutoModelForCausalLM
import torch
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="float32")
assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 475)
"""
"""Does with models what a run's main process and its workers do, and then what a workflow with a model of its own may do."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "then", ["", pytest.param(MODEL, marks=[pytest.mark.soak, pytest.mark.timeout(180)])], ids=["", "and a model"]
)
def test_who_talks_about_tokens_loads_no_torch(then: str, tmp_path: Path) -> None:
    """Whatever name a model's configuration has for its dtype, if it has one."""
    models = []
    for name in ("dtype", "torch_dtype", None):
        models.append(tmp_path / str(name))
        shutil.copytree(NANO, models[-1])
        config = json.loads((NANO / "config.json").read_text())
        dtype = config.pop("dtype")
        (models[-1] / "config.json").write_text(json.dumps({**config, name: dtype} if name else config))
    words = [sys.executable, "-c", TOKENS + then, *map(str, models)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=110 if not then else 170)
    assert done.returncode == 0, done.stderr


def test_a_file_that_changed_within_a_second_is_loaded_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "changing.py"
    for value in range(10):
        file.write_text(f"VALUE = {value}\n")
        assert load_file(file).__dict__["VALUE"] == value
