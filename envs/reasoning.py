"""`agentrl/ReasoningGym-v0`: every task family of reasoning-gym, scored as the library scores it.

Needs the extra `envs`.

A task names an entry: {"dataset": "gcd", "index": 7} and, as needed, "config" (of the family) and "level" (of its
curriculum).

`python -m agentrl.envs.reasoning DIR gcd lcm` writes `train.jsonl` and `eval.jsonl`, to be run by `workflows/tool_loop.py`.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl.envs.task_files import write_task_files
from agentrl.envs.tool_env import Message, Result, ToolEnv
from agentrl.errors import EpisodeError
from agentrl.system.exit_code import exit_code_of

SIZE = 1024
"""Entries of a family, or the next power of 2 above the index: some families prepare all of them at once."""
TRY_AGAIN = "That is not right. Try again."


@dataclass
class Curriculum:
    """The level of one family: up when its recent scores are high, down when they are low.

    All episodes of a task see the level that the first of them saw, so that they can be compared.
    """

    level: int = 0
    window: int = 64
    """Scores that a decision takes."""
    raise_at: float = 0.8
    lower_at: float = 0.2
    _scores: deque[float] = field(default_factory=deque)
    _of_task: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def level_of(self, index: int) -> int:
        """Return the level of a task."""
        with self._lock:
            level = self._of_task.setdefault(index, self.level)
            if len(self._of_task) > 64 * self.window:
                self._of_task.popitem(last=False)
            return level

    def add(self, level: int, score: float) -> None:
        """Note a score; those of an earlier level say nothing about this one."""
        with self._lock:
            if level != self.level:
                return
            self._scores.append(score)
            if len(self._scores) < self.window:
                return
            mean = sum(self._scores) / len(self._scores)
            if mean >= self.raise_at or (mean <= self.lower_at and self.level):
                self.level += 1 if mean >= self.raise_at else -1
                self._scores.clear()
            else:
                self._scores.popleft()


_CURRICULA: dict[str, Curriculum] = {}
"""The curricula of this process, by family."""


class ReasoningEnv(ToolEnv):
    """One entry of reasoning-gym an episode.

    Args:
        attempts: answers that the agent may give; after a wrong one it is told so. A later answer earns
        `attempt_discount` times
            as much as the one before.
        system: name of one of reasoning-gym's system prompts, such as "DeepSeekZero"; the answer is then what stands in
            <answer> tags. Default: none, and the whole reply is the answer.
        curriculum: let the level of each family follow its scores.
    """

    def __init__(
        self,
        *,
        attempts: int = 1,
        attempt_discount: float = 1.0,
        system: str | None = None,
        curriculum: bool = False,
    ) -> None:
        super().__init__()
        self.max_turns = attempts
        self._attempt_discount = attempt_discount
        self._system = system
        self._curriculum: Curriculum | None = None
        self._follows = curriculum
        self._dataset: Any = None
        self._entry: dict[str, Any] = {}
        self._attempt = 0

    def on_reset(self, task: dict[str, Any] | None) -> list[Message]:
        """Return the question.

        Raises:
            EpisodeError: The task names no dataset.
        """
        if not task or "dataset" not in task:
            raise EpisodeError("a task of agentrl/ReasoningGym-v0 needs 'dataset', and 'index'")
        name, index = task["dataset"], int(task.get("index", self.np_random.integers(SIZE)))
        level = task.get("level")
        if self._follows:
            self._curriculum = _CURRICULA.setdefault(name, Curriculum(level or 0))
            level = self._curriculum.level_of(index)
        config = {"size": max(SIZE, 1 << index.bit_length()), **task.get("config", {})}
        self._dataset = dataset(name, json.dumps(config, sort_keys=True), level)
        self._entry = self._dataset[index]
        self._attempt = 0
        if level is not None:
            self.info["level"] = float(level)
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
        if self._curriculum is not None and self._attempt == 1:
            self._curriculum.add(int(self.info["level"]), score)
        if score < 1 and self._attempt < self.max_turns:
            return Result(TRY_AGAIN)
        self.info["attempts"] = float(self._attempt)
        return Result(reward=score * self._attempt_discount ** (self._attempt - 1), done=True)


@lru_cache(maxsize=256)
def dataset(name: str, config: str = "{}", level: int | None = None) -> Any:
    """Return a family of reasoning-gym, at a level of its curriculum.

    `config`: JSON.

    Raises:
        EpisodeError: What there is not.
    """
    import reasoning_gym
    from reasoning_gym.factory import CURRICULA, DATASETS

    if name not in DATASETS:
        meant = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"; did you mean {meant[0]!r}?" if meant else "; reasoning_gym.factory.DATASETS lists them"
        raise EpisodeError(f"reasoning-gym has no dataset {name!r}{hint}")
    settings = json.loads(config)
    if level is not None:
        if name not in CURRICULA:
            raise EpisodeError(f"the dataset {name!r} of reasoning-gym has no curriculum; leave 'level' out")
        curriculum = CURRICULA[name]()
        curriculum.set_global_level(level)
        levelled = vars(curriculum.generate_configuration({}))
        settings = {**{key: value for key, value in levelled.items() if key not in ("seed", "size")}, **settings}
    if name == "composite":
        from reasoning_gym.composite import DatasetSpec

        settings["datasets"] = [DatasetSpec(**part) for part in settings.get("datasets", [])]
    try:
        return reasoning_gym.create_dataset(name, **{"seed": 0, "size": SIZE, **settings})
    except (AssertionError, TypeError, ValueError) as error:
        raise EpisodeError(f"the dataset {name!r} cannot be made at level {level} with {config}: {error}") from error


def tasks(names: Sequence[str], count: int, first: int = 0, make: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return tasks of reasoning-gym, for `workflows/tool_loop.py`.

    Args:
        names: The families.
        count: Tasks of each family.
        first: Index of the first.
        make: Goes to the environment.
    """
    made = {"make": make} if make else {}
    return [
        {"env": "agentrl/ReasoningGym-v0", "dataset": name, "index": index, **made}
        for index in range(first, first + count)
        for name in names
    ]


def main() -> int:
    """Write the task files."""
    parser = argparse.ArgumentParser(prog="python -m agentrl.envs.reasoning", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("datasets", nargs="+", help="families of reasoning-gym")
    parser.add_argument("--train", type=int, default=1000, help="training tasks a family")
    parser.add_argument("--eval", type=int, default=50, help="held-out tasks a family")
    parser.add_argument("--attempts", type=int, default=1)
    parser.add_argument("--curriculum", action="store_true")
    args = parser.parse_args()
    for name in args.datasets:
        dataset(name)
    settings: dict[str, Any] = {"attempts": args.attempts} if args.attempts > 1 else {}
    curriculum = {"curriculum": True} if args.curriculum else {}
    train = tasks(args.datasets, args.train, args.eval, {**settings, **curriculum})
    write_task_files(args.directory, {"train": train, "eval": tasks(args.datasets, args.eval, 0, settings)})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
