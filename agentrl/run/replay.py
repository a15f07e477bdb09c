"""`agentrl replay RUN EPISODE`: one episode again, answered from its record, without an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig
from agentrl.engine.protocol import Engine
from agentrl.episode import Task
from agentrl.errors import EngineError, StoreError, UsageError
from agentrl.evaluation.directory import check_no_evaluation
from agentrl.record.recorded_choice import CallLog, recorded_choices
from agentrl.record.tokens import Generation
from agentrl.rollout.open_runner import chat_format_of, in_process_runner
from agentrl.rollout.workflow import Workflow, load_workflow
from agentrl.run.open_run import Run
from agentrl.run.run_directory import read_config
from agentrl.store.database import reading
from agentrl.store.outcome import Outcome
from agentrl.store.read_episode import RunEpisode
from agentrl.store.store import Store
from agentrl.system.tasks import in_thread
from agentrl.tasks.curriculum import TaskList, open_run_tasks, task_history
from agentrl.tasks.task_type import task_type_of
from agentrl.tasks.tasks import episode_seed, group_seed


@dataclass(frozen=True)
class Replay:
    """A replayed episode beside the one that was recorded."""

    recorded: RunEpisode
    outcome: Outcome
    calls_recorded: int
    conversation: list[tuple[str, str]]
    """(what was added to the prompt, what the model said) of every call that the record answers this time, as text with its special tokens."""
    unknown: list[str]
    """The texts that the episode asked this time and that its record does not hold."""

    @property
    def same(self) -> bool:
        """Whether the episode asked the same and was worth the same."""
        same_end = (self.outcome.reason, self.outcome.reward) == (self.recorded.reason, self.recorded.reward)
        return same_end and not self.unknown and len(self.conversation) == self.calls_recorded


class _NoEngine(Engine):
    """An engine that refuses, and notes what it was asked. The rest of the protocol does nothing."""

    version = 0
    has_grammar = takes_images = True

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    async def generate(self, input_ids: list[int], *_: Any, **__: Any) -> Generation:
        self.asked.append(input_ids)
        raise EngineError("the episode asks what its record does not hold, and a replay has no engine")


async def replay(
    run_dir: Path,
    episode_id: int,
    *,
    workflow: Workflow | None = None,
    tasks: Any = None,
) -> Replay:
    """Run an episode of a run again with its task, its seeds and its recorded replies.

    Args:
        run_dir: The run's directory.
        episode_id: The episode.
        workflow: Stands in for the file that the run's configuration names.
        tasks: The same for its tasks.

    Raises:
        StoreError: There is no such run or episode, or it is of an evaluation.
    """
    config, recorded, task, run = await in_thread(_found, run_dir, episode_id, workflow, tasks)
    chat_format = await in_thread(chat_format_of, config, abandon_on_cancel=True)
    engine, decode = _NoEngine(), chat_format.tokenizer.decode  # type: ignore[abstract]
    record = await in_thread(lambda: recorded.record)
    answers = CallLog(recorded_choices(record))
    # The run may be going on at its own address.
    config = config.model_copy(update={"proxy": config.proxy.model_copy(update={"host": "127.0.0.1", "port": 0})})
    async with in_process_runner(config, run, engine, chat_format=chat_format, training=False) as runner:
        outcome = await runner.run(
            task,
            episode_seed(config.seed, recorded.group, recorded.episode_index),
            group_seed(config.seed, recorded.group),
            answers,
        )
    turns = outcome.record.turns
    said = [(decode(turn.prompt_ids), decode(turn.output_ids)) for turn in turns]
    return Replay(recorded, outcome, len(record.turns), said, [*map(decode, engine.asked)])


def _found(
    run_dir: Path, episode_id: int, workflow: Workflow | None, tasks: Any
) -> tuple[RunConfig, RunEpisode, Task, Workflow]:
    config = read_config(run_dir)
    check_no_evaluation(run_dir)
    with reading(f"episode {episode_id}", run_dir), Store(run_dir / "store.sqlite", read_only=True) as store:
        digests, history = store.task_digests(), store.read(task_history)
    recorded = Run(run_dir).episode(episode_id)
    if (workflow is None and not config.workflow) or (tasks is None and not config.tasks and not config.data.sources):
        raise UsageError(
            f"the run in {run_dir} was started from Python, with a workflow or tasks that are in no file: replay it there, by "
            "agentrl.run.replay.replay(run_dir, episode, workflow=..., tasks=...)"
        )
    workflow = workflow or load_workflow(Path(config.workflow))
    source, _ = open_run_tasks(config, tasks, task_type_of(workflow))
    if isinstance(source, TaskList):
        source.restore(history)
    found = source.task_of_group(recorded.group)
    if found is None or found.task is None or found.digest != digests[recorded.group]:
        raise StoreError(
            f"the task of group {recorded.group} is another now than the one that episode {episode_id} had, or is gone"
        )
    return config, recorded, found.task, workflow
