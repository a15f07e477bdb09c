"""`agentrl/ReasoningGym-v0`: every task family of reasoning-gym, scored as the library scores it.

Needs the extra `envs`.

A task names an entry: {"dataset": "gcd", "index": 7} and, as needed, "config" (of the family) and "level" (of its curriculum).

`python -m agentrl.envs.reasoning DIR gcd lcm` writes `train.jsonl` and `eval.jsonl`, to be run by `workflows/tool_loop.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from agentrl.envs.tool_env import Message, Result, ToolEnv
from agentrl.errors import EpisodeError
from agentrl.system.exit_code import exit_code_of
from agentrl.system.imports import imported_later

SIZE = 1024
"""Entries of a family, or the next power of 2 above the index: some families prepare all of them at once."""
TRY_AGAIN = "That is not right. Try again."


class ReasoningEnv(ToolEnv):
    """One entry of reasoning-gym an episode.

    Args:
        attempts: answers that the agent may give; after a wrong one it is told so.
        attempt_discount: a later answer earns so many times as much as the one before.
        system: name of one of reasoning-gym's system prompts, such as "DeepSeekZero"; the answer is then what stands in
            <answer> tags. Default: none, and the whole reply is the answer.
    """

    def __init__(self, *, attempts: int = 1, attempt_discount: float = 1.0, system: str | None = None) -> None:
        with imported_later("cellpylib"):  # which draws in matplotlib: half of the time that all of this takes
            import_module("reasoning_gym")  # with the environment, which is made in a thread, and not in an episode
        self.max_turns = attempts
        self._attempt_discount = attempt_discount
        self._system = system

    def on_reset(self, task: dict[str, Any] | None) -> list[Message]:
        """Return the question.

        Raises:
            EpisodeError: The task names no dataset.
        """
        if not task or "dataset" not in task:
            raise EpisodeError("a task of agentrl/ReasoningGym-v0 needs 'dataset', and 'index'")
        name, index = task["dataset"], int(task.get("index", self.np_random.integers(SIZE)))
        config = {"size": max(SIZE, 1 << index.bit_length()), **task.get("config", {})}
        self._dataset = dataset(name, json.dumps(config, sort_keys=True), task.get("level"))
        self._entry = self._dataset[index]
        self._attempt = 0
        messages: list[Message] = [{"role": "user", "content": self._entry["question"]}]
        if self._system is not None:
            from reasoning_gym.utils import SYSTEM_PROMPTS

            messages.insert(0, {"role": "system", "content": SYSTEM_PROMPTS[self._system]})
        return messages

    def on_answer(self, content: str) -> Result:
        """Return the library's score, from 0 to 1."""
        said: str | None = content.strip()
        if self._system is not None:
            from reasoning_gym.utils import extract_answer

            said = extract_answer(content)
        try:
            score = float(self._dataset.score_answer(said, self._entry))
        except Exception:
            score = 0.0  # some families cannot read every answer
        self._attempt += 1
        if score < 1 and self._attempt < self.max_turns:
            return Result(TRY_AGAIN)
        self.info["attempts"] = float(self._attempt)
        return Result(reward=score * self._attempt_discount ** (self._attempt - 1), done=True)


@lru_cache(maxsize=256)
def dataset(name: str, config: str = "{}", level: int | None = None) -> Any:
    """Return a family of reasoning-gym.

    Args:
        name: Of the family.
        config: Its configuration, as JSON.
        level: The level of its curriculum; None: without one.

    Raises:
        EpisodeError: There is no such family, level or configuration.
    """
    import reasoning_gym
    from reasoning_gym.composite import DatasetSpec
    from reasoning_gym.factory import create_curriculum

    settings = json.loads(config)
    if name == "composite":
        settings["datasets"] = [DatasetSpec(**part) for part in settings.get("datasets", [])]
    try:
        if level is not None:
            curriculum = create_curriculum(name)
            curriculum.set_global_level(level)
            settings = {**vars(curriculum.generate_configuration({"seed": 0, "size": SIZE})), **settings}
        return reasoning_gym.create_dataset(name, **{"seed": 0, "size": SIZE, **settings})
    except (AssertionError, TypeError, ValueError) as error:
        raise EpisodeError(
            f"reasoning-gym cannot make {name!r} at level {level} with {config}: {error}; reasoning_gym.factory.DATASETS and CURRICULA "
            "list the families, and those that have levels"
        ) from error


def write_task_files(directory: Path, parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write `NAME.jsonl` for each part, one task a line, and print how many each has. The directory is made where there is none."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, rows in parts.items():
        path = directory / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{path}: {len(rows)} tasks")


def main() -> int:
    """Write the task files."""
    parser = argparse.ArgumentParser(prog="python -m agentrl.envs.reasoning", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("datasets", nargs="+", help="families of reasoning-gym")
    parser.add_argument("--train", type=int, default=1000, help="training tasks a family")
    parser.add_argument("--eval", type=int, default=50, help="held-out tasks a family")
    parser.add_argument("--attempts", type=int, help="answers that the agent may give")
    parser.add_argument("--level", type=int, help="of each family's curriculum")
    args = parser.parse_args()
    for name in args.datasets:
        dataset(name, level=args.level)
    keys = {} if args.level is None else {"level": args.level}
    keys |= {} if args.attempts is None else {"make": {"attempts": args.attempts}}
    tasks = [
        {"env": "agentrl/ReasoningGym-v0", "dataset": name, "index": index, **keys}
        for index in range(args.eval + args.train)
        for name in args.datasets
    ]
    held_out = args.eval * len(args.datasets)
    write_task_files(args.directory, {"train": tasks[held_out:], "eval": tasks[:held_out]})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
