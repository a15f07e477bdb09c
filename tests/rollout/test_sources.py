"""The workflow and the tasks of a run: what a program gives goes before what the configuration names."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config import RunConfig
from agentrl.episode import Episode
from agentrl.errors import ConfigError, WorkflowError
from agentrl.rollout.workflow import sources_of

NAMED = RunConfig(workflow="named.py", tasks="named.jsonl")


async def run(episode: Episode) -> float:
    return 0.0


class Workflow:
    async def __call__(self, episode: Episode) -> float:
        return 0.0


def test_what_the_configuration_names_is_used_where_nothing_is_given() -> None:
    found = sources_of(NAMED, None, None)
    assert (found.config, found.workflow, found.tasks) == (NAMED, None, None)


def test_a_function_or_an_object_that_is_called_stands_in_for_the_file() -> None:
    for given in (run, Workflow()):
        found = sources_of(NAMED, given, [{"n": 1}])
        assert (found.load_workflow(), found.tasks) == (given, [{"n": 1}])
        # What is written down would else be taken for what the run was started with.
        assert (found.config.workflow, found.config.tasks) == ("", "")


def test_a_path_is_what_the_configuration_names_from_then_on(tmp_path: Path) -> None:
    file = tmp_path / "flow.py"
    file.write_text("async def run(episode): ...\n")
    found = sources_of(NAMED, file, "hf:some/tasks")
    assert (found.config.workflow, found.config.tasks) == (str(file), "hf:some/tasks")
    assert found.load_workflow().__name__ == "run"
    with pytest.raises(WorkflowError, match=r"the workflow file no\.py does not exist"):
        sources_of(NAMED, "no.py", None).load_workflow()


def test_what_nothing_says_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="`workflow` is not set"):
        sources_of(RunConfig(tasks="t"), None, None)
    with pytest.raises(ConfigError, match="`tasks` is not set"):
        sources_of(RunConfig(), run, None)
