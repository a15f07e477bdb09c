"""What the ready workflows read in a tool call, whatever the model wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.workflows.python_tool import code_of
from agentrl.workflows.shell_agent import command_of

READERS = [
    pytest.param(code_of, "python", "code", id="python"),
    pytest.param(command_of, "shell", "command", id="shell"),
]


def call_of(name: str, arguments: str) -> Any:
    return SimpleNamespace(function=SimpleNamespace(name=name, arguments=arguments))


@pytest.mark.parametrize(("read", "name", "field"), READERS)
def test_a_call_that_makes_no_sense_is_told_from_one_that_does(
    read: Callable[[Any], str | None], name: str, field: str
) -> None:
    assert read(call_of(name, json.dumps({field: "ls"}))) == "ls"
    assert read(call_of("other", json.dumps({field: "ls"}))) is None
    begun = f'{{"{field}": '
    for rest in ("", '"l', '"\\ud83d"}', "[" * 5000, "[" * 5000 + "]" * 5000 + "}", "1}", "9" * 5000 + "}"):
        assert read(call_of(name, begun + rest)) is None, rest[:20]
