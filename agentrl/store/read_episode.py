"""An episode of a run, or of an evaluation, as it is read from Python: what was said, and every token of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from agentrl.config import RunConfig, TrainerConfig
from agentrl.errors import one_line
from agentrl.models.text import TokenText
from agentrl.record.credit import group_advantages, turn_returns
from agentrl.record.trajectory import TokenRecord, Trajectory
from agentrl.store.database import reading
from agentrl.store.episodes import ListedEpisode
from agentrl.store.store import Store
from agentrl.store.token_figures import TokenFigures, token_figures

COMPARED_IN_THE_GROUP = ("grpo", "dr_grpo", "rloo")
"""Advantages that follow from the rewards of a group alone."""


class EpisodeSource(Protocol):
    """A source that episodes are read from: a run, or an evaluation."""

    @property
    def path(self) -> Path:
        """Its directory."""
        ...

    @property
    def config(self) -> RunConfig:
        """Its configuration."""
        ...

    @property
    def text(self) -> TokenText:
        """The text of its tokens. Raises ConfigError when there is no tokenizer any more."""
        ...


@dataclass(frozen=True, kw_only=True, repr=False)
class RunTrajectory(Trajectory):
    """One path of an episode's tree, `T` tokens, as it is trained on: an `agentrl.Trajectory` with its text and what it is worth."""

    pieces: list[str]  # [T]
    """The text of each token by itself."""
    returns: list[float]  # [T]
    """The return of the token's turn (docs/credit.md)."""
    advantages: list[float] | None  # [T]
    """The advantage of the token's turn in its group; what a step adds that follows from its own forward passes, a KL penalty or a
    teacher, is not in it. None: the episode failed, or `trainer.advantage.kind` is one that takes a critic ("gae") or the whole batch
    ("reinforce_pp", "reinforce_pp_baseline")."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RunEpisode(ListedEpisode):
    """One episode of a run, or of an evaluation, read from its store."""

    source: EpisodeSource

    @cached_property
    def record(self) -> TokenRecord:
        """Its token record: the tree of its turns."""
        with self._open_store(f"episode {self.id}") as store:
            return store.record(self.id)

    @cached_property
    def details(self) -> dict[str, Any]:
        """The details of its reward, such as what a verdict said; {}: it has none."""
        query = "SELECT details FROM episodes WHERE id = ?"
        with self._open_store(f"episode {self.id}") as store:
            (text,) = store.read(lambda db: db.execute(query, (self.id,)).fetchone())
        return dict(json.loads(text or "{}"))

    @cached_property
    def token_figures(self) -> TokenFigures | None:
        """Figures of its tokens that only the trainer knows. None: it was not trained on, or is not of the twentieth whose figures are kept."""
        record = self.record
        with self._open_store(f"episode {self.id}") as store:
            return store.read(lambda db: token_figures(db, self.id, record))

    @contextmanager
    def _open_store(self, what: str) -> Iterator[Store]:
        with Store(self.source.path / "store.sqlite", read_only=True) as store, reading(what, self.source.path):
            yield store

    def transcript(self) -> str:
        """Return what was said, turn by turn, with the special tokens of the chat format.

        Raises:
            ConfigError: The model's tokenizer is not there any more.
        """
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        turns = self.record.turns
        number = {id(turn): index for index, turn in enumerate(turns, 1)}
        yield f"episode {self.id}: task {self.task}, {self.reason}, reward {self.reward:g}"
        for index, turn in enumerate(turns, 1):
            decode = self.source.text.decode
            name = f"turn {index}" + (f" ({turn.role})" if turn.role else "")
            parent = 0 if turn.parent is None else number[id(turn.parent)]
            branch = f", after turn {parent}" if parent not in (0, index - 1) else ""
            began_anew = ", a new conversation" if not parent and index > 1 else ""
            left_out = " (not trained on)" if not parent and turn.left_out else ""
            own = "" if turn.reward is None else f", reward {turn.reward:g}"
            cut = ", cut off (max_tokens or the context was used up)" if turn.truncated else ""
            altered = "".join(f", {field} {value}" for field, value in turn.alterations.items())
            how = altered and f", sampled with{altered[1:]}"
            yield f"--- {name}{branch}{began_anew}{left_out}: prompt\n{decode(turn.prompt_ids)}"
            yield f"--- {name}: reply{how}{cut}{own}\n{decode(turn.output_ids)}"
        if not turns:
            yield "--- no model call is recorded"
        if self.error:
            yield f"--- error\n{self.error}"

    @property
    def trajectories(self) -> list[RunTrajectory]:
        """Its paths, with every token.

        Raises:
            ConfigError: The model's tokenizer is not there any more.
        """
        record, advantages = self.weighed()
        returns = self.returns(record)
        return [
            RunTrajectory(
                **vars(path),
                pieces=self.source.text.pieces(path.token_ids),
                returns=path.per_token(returns),
                advantages=None if advantages is None else path.per_token(advantages),
            )
            for path in record.trajectories()
        ]

    def returns(self, record: TokenRecord) -> list[float]:
        """Return the return of each turn of its record (docs/credit.md)."""
        trainer = self.source.config.trainer
        return turn_returns(record, self.reward, None if trainer.has_critic else trainer.advantage.discount)

    def weighed(self) -> tuple[TokenRecord, list[float] | None]:
        """Return the record with the turns marked that the trainer leaves out, and each turn's advantage, None where there is none."""
        found = weighed_group(self.source, self.group) if self.reason == "finished" else {}
        # It is no member any more where it has been set aside since it was listed.
        return found.get(self.id) or (self.record, None)

    def __repr__(self) -> str:
        trained = f", trained in step {self.step}" if self.step is not None else ""
        return f"<RunEpisode {self.id}: task {self.task}, group {self.group}, {self.reason}, reward {self.reward:g}, {self.tokens} tokens{trained}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows of it."""
        from agentrl.viewer.export import episode_html  # the page stands above, and is loaded by who looks at it

        return episode_html(self)


def weighed_group(source: EpisodeSource, group: int) -> dict[int, tuple[TokenRecord, list[float]]]:
    """Return what `RunEpisode.weighed` does of each finished episode of a group, by its id; {}: they have no advantages of their group alone."""
    trainer: TrainerConfig = source.config.trainer
    if trainer.advantage.kind not in COMPARED_IN_THE_GROUP:
        return {}
    with Store(source.path / "store.sqlite", read_only=True) as store, reading(f"group {group}", source.path):
        members = store.episodes([group])
    found = group_advantages([member.record for member in members], [member.reward for member in members], trainer)
    return {member.id: (member.record, own) for member, own in zip(members, found, strict=True)}


def sample_replies(episodes: Sequence[RunEpisode]) -> Iterator[str]:
    """Yield a line each for the best and the worst finished episode that called the model, or for one where all earned the same: its id, reward and last reply."""
    spoken = sorted((one for one in episodes if one.reason == "finished" and one.tokens), key=lambda one: one.reward)
    names = ("the best", "the worst") if len({episode.reward for episode in spoken}) > 1 else ("a",)
    for name, episode in zip(names, spoken[-1:] + spoken[:1], strict=False):
        turn = episode.record.turns[-1]
        cut = ", cut off (max_tokens or the context was used up)" if turn.truncated else ""
        yield f"{name} reply (episode {episode.id}, reward {episode.reward:g}{cut}): {one_line(episode.source.text.decode(turn.output_ids))!r}"
