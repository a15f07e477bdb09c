"""The command line's words for the keys and arguments that messages of the SDK name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl.cli import main as cli
from agentrl.cli.option_words import in_options
from agentrl.errors import TrainerError

INSTALL = f"{sys.executable} -m pip install -e '{Path(__file__).parents[2]}"


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("`trainer.optimizer.lr` is too large", "trainer.optimizer.lr (--trainer.optimizer.lr) is too large"),
        ("`proxy.max_sessions` = 3", "proxy.max_sessions (--proxy.max-sessions) = 3"),
        ("`trainer.advantage` = 3", "trainer.advantage (--trainer.advantage) = 3"),
        ("`model.path` and `workflow`", "model.path (--model) and workflow (WORKFLOW)"),
        ("`base_url` x, `out` y", "--base-url x, --out y"),
        ("go on with `resume=True` in runs/a.b; or not", "go on with --resume runs/a.b; or not"),
        ("go on with `resume=True` in runs/a.", "go on with --resume runs/a."),
        ("`resume=True` restores it", "--resume RUN_DIR restores it"),
        ("go on with: agentrl train --resume a", "go on with: python -m agentrl train --resume a"),
        ("agentrl needs it: pip install -e '/path/to/agentrl[lora]'", f"agentrl needs it: {INSTALL}[lora]'"),
        ("write `async def run(episode)`, or `nothing`", "write `async def run(episode)`, or `nothing`"),
    ],
)
def test_keys_arguments_and_commands_become_what_is_typed_here_and_all_else_stays(
    said: str, typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.cli.option_words.COMMAND", "python -m agentrl")
    assert in_options(said) == typed


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_is_known(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.cli.option_words.COMMAND", "python -m agentrl")
    assert in_options(f"see agentrl {command} --help") == f"see python -m agentrl {command} --help"


def test_an_error_that_ends_a_command_speaks_of_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> int:
        raise TrainerError("mend the cause, and go on with `resume=True` in runs/a")

    monkeypatch.setattr("agentrl.cli.setup.doctor", command)
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err == "agentrl: mend the cause, and go on with --resume runs/a\n"
