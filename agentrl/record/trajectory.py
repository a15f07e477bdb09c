"""The token record of an episode: a tree of turns, and its paths as trajectories that are ready to train on.

    prompt_ids ── output_ids ──┬── prompt_ids ── output_ids            branch 1: the conversation went on
       turn 1                  │      turn 2
                               └── prompt_ids ── output_ids            branch 2: it went on differently

A turn is one model call. Its `prompt_ids` are only what the call added after its parent's path, so a shared prefix is
stored once. Along any path the concatenation of prompt_ids and output_ids is exactly what the engine was sent and
returned: input_ids of a call = path up to its prompt, and nothing is ever tokenised again.

A turn carries the length of its path and the digest of the path's ids, which go on from its parent's: whether ids extend a
path costs their own length, and not that of the path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from agentrl.record.rolling_digest import RollingDigest
from agentrl.record.tokens import Generation, ImageSpan, VersionSpan

EXAMPLE_TOKENS = 200
"""Tokens of a reply that is shown as an example."""


@dataclass(frozen=True)
class TurnText:
    """The texts that a turn's conversation is known by. They are not stored: what is chosen by them is."""

    system: str = ""
    """The system prompt, in the first turn of a conversation."""
    tools: tuple[str, ...] = ()
    """Names of the tools that the request offered."""
    reply: str = ""


@dataclass(eq=False, repr=False)
class Turn:
    """One model call. Its parent and its ids do not change once it is made: what is computed of its path is kept."""

    completion_id: str
    parent: Turn | None
    prompt_ids: list[int]
    """Ids between the end of the parent's path and this call's output: rendered messages, never sampled."""
    output_ids: list[int]  # [T]
    logprobs: list[float]  # [T]
    versions: list[VersionSpan]
    temperature: float
    images: list[ImageSpan] = field(default_factory=list)
    """Images that the prompt_ids brought; their indices count from the start of the path."""
    reward: float | None = None
    """The reward of this one call, where the workflow gave it one."""
    role: str = ""
    """The role that made the call, where the workflow names roles."""
    adapter: str = ""
    """The role whose LoRA adapter answered, where roles have adapters of their own: it learns from the turn."""
    role_reward: float | None = None
    """The reward of that role, where the workflow gave it one."""
    trained: bool = True
    """False: a role that is recorded and not trained on."""
    truncated: bool = False
    """Whether the reply was cut off for its length."""
    failed: bool = False
    """Whether the workflow says that the reply could not be used."""
    request: str = ""
    """Digest of what was asked; `agentrl.proxy.call_log`."""
    choice_index: int = 0
    """Which of the call's replies it is."""
    tool_call_ids: list[str] = field(default_factory=list)
    """Ids of the tool calls in it."""
    tools: bool = False
    """Whether the request offered tools."""
    model: str = ""
    """The model name that the client asked for."""
    left_out: bool = False
    """Whether its conversation is recorded and not trained on, since `rollout.trajectories` leaves it out."""
    alterations: dict[str, Any] = field(default_factory=dict)
    """The fields of the request that had tokens drawn from another distribution than the policy's own: `{"top_k": 5}`."""
    text: TurnText = field(init=False, default=TurnText())
    length: int = field(init=False)
    """Ids of the path that ends with this turn, output included."""
    _digest: RollingDigest | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        self.length = (self.parent.length if self.parent else 0) + len(self.prompt_ids) + len(self.output_ids)

    def __repr__(self) -> str:
        role = f" of {self.role}" if self.role else ""
        return f"<Turn {self.completion_id}{role}: {len(self.prompt_ids)} ids asked, {len(self.output_ids)} sampled>"

    def path(self) -> list[Turn]:
        """Return the turns from the root to this one."""
        turns: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return turns[::-1]

    def path_images(self) -> list[ImageSpan]:
        """Return all images of the path that ends with this turn."""
        return [image for turn in self.path() for image in turn.images]

    def token_ids(self) -> list[int]:
        """Return all ids of the path that ends with this turn, output included."""
        ids: list[int] = []
        for turn in self.path():
            ids += turn.prompt_ids + turn.output_ids
        return ids

    def path_digest(self) -> RollingDigest:
        """Return the digest of `token_ids()`, computed from that of the parent's path."""
        digest = self._digest or RollingDigest()
        if self._digest is None:
            for turn in self.path():
                digest = turn._digest = turn._digest or digest.with_ids(turn.prompt_ids, turn.output_ids)
        return digest


@dataclass(frozen=True, repr=False)
class Trajectory:
    """One path of the tree, `T` tokens, ready to train on.

    For a prompt of 3 tokens and a reply of 2, sampled under version 5 at temperature 1:

        token_ids   [11, 12, 13, 40, 41]
        loss_mask   [ 0,  0,  0,  1,  1]       1: sampled by the policy, and trained on in this path
        logprobs    [ 0,  0,  0, -.3, -.1]     behaviour logprobs; 0 where nothing was sampled
        versions    [-1, -1, -1,  5,  5]       weights that sampled the token; -1: not sampled
        temperatures [1,  1,  1,  1,  1]
        turn_index  [ 4,  4,  4,  4,  4]       the token's turn, as an index into the record's `turns`

    A token that several paths share is trained on in the first of them only. What a turn earned, or what its advantage is, is no part of
    it: such numbers are lists in the order of the record's `turns`, and `per_token` spreads them.
    """

    token_ids: list[int]  # [T]
    loss_mask: list[bool]  # [T]
    logprobs: list[float]  # [T]
    versions: list[int]  # [T]
    temperatures: list[float]  # [T]
    turn_index: list[int]  # [T]
    truncated: bool = False
    """Whether it ends with a reply that was cut off for its length."""

    def __len__(self) -> int:
        """Return T."""
        return len(self.token_ids)

    def __repr__(self) -> str:
        versions = sorted({version for version in self.versions if version >= 0})
        return f"<{type(self).__name__} of {len(self)} tokens, {sum(self.loss_mask)} trained, turns: {len(set(self.turn_index))}, versions: {versions}>"

    def per_token(self, per_turn: Sequence[float]) -> list[float]:
        """Give every token the number of its turn.

        Args:
            per_turn: One number a turn, in the order of the record's `turns`.

        Returns:
            [T] numbers.
        """
        return [per_turn[index] for index in self.turn_index]


@dataclass(frozen=True, kw_only=True)
class RecordFigures:
    """Sums over the turns of one token record, which a run looks at when an episode ends: few, also of a long record."""

    replies: int = 0
    truncated: int = 0
    """Replies that were cut off for their length."""
    with_tools: int = 0
    """Replies to requests that offered tools."""
    tool_calls: int = 0
    """Replies that call a tool."""
    failed_calls: int = 0
    """Replies to requests that offered tools which the workflow marked as failed: those whose tool call could not be carried out."""
    altered_by: list[str] = field(default_factory=list)
    """By reply, of a role that is trained on, that was sampled otherwise than the policy samples: the fields that asked for it."""
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    interrupted_tokens: int = 0
    """Sampled tokens of replies that a weight update interrupted."""
    left_out_tokens: int = 0
    """Sampled tokens of conversations that are not trained on."""
    has_turn_rewards: bool = False
    """Whether single calls or roles have rewards of their own."""
    example: list[int] = field(default_factory=list)
    """The beginning of the last reply that could call a tool and calls none."""


@dataclass(repr=False)
class TokenRecord:
    """The turns of one episode, in the order in which their calls ended."""

    turns: list[Turn] = field(default_factory=list)

    def __repr__(self) -> str:
        sampled = sum(len(turn.output_ids) for turn in self.turns)
        return f"<TokenRecord: {len(self.turns)} turns, {len(self.leaves())} trajectories, {sampled} tokens sampled>"

    def add(
        self,
        completion_id: str,
        parent: Turn | None,
        input_ids: list[int],
        generation: Generation,
        temperature: float,
        images: Sequence[ImageSpan] = (),
        digest: RollingDigest | None = None,
    ) -> Turn:
        """Record a call.

        Args:
            completion_id: What its client calls the completion.
            parent: The turn that it goes on from; None: it begins a path.
            input_ids: All ids that the engine was sent.
            generation: What the engine returned.
            temperature: That of the reported logprobs, above 0.
            images: Those whose tokens are in `input_ids`.
            digest: Of `input_ids`, for who has it already.

        Returns:
            The new turn.

        Raises:
            ValueError: `input_ids` do not extend the parent's path.
        """
        before = parent.length if parent else 0
        prompt_ids = input_ids[before:]
        sent = digest or RollingDigest().with_ids(input_ids)
        if (parent.path_digest() if parent else RollingDigest()).with_ids(prompt_ids) != sent:
            raise ValueError("input_ids do not extend the path of the parent turn")
        turn = Turn(
            completion_id=completion_id,
            parent=parent,
            prompt_ids=prompt_ids,
            output_ids=generation.output_ids,
            logprobs=generation.logprobs,
            versions=generation.versions,
            temperature=temperature,
            truncated=generation.finish == "length",
            images=[image for image in images if image.start >= before],
        )
        turn._digest = sent.with_ids(generation.output_ids)
        self.turns.append(turn)
        return turn

    def leaves(self) -> list[Turn]:
        """Return the turns that no other turn continues."""
        parents = {turn.parent for turn in self.turns}
        return [turn for turn in self.turns if turn not in parents]

    def figures(self) -> RecordFigures:
        """Return the figures that a run looks at."""
        turns = self.turns
        without_call = [turn for turn in turns if turn.tools and not turn.tool_call_ids]
        return RecordFigures(
            replies=len(turns),
            truncated=sum(turn.truncated for turn in turns),
            with_tools=sum(turn.tools for turn in turns),
            tool_calls=sum(bool(turn.tool_call_ids) for turn in turns),
            failed_calls=sum(turn.failed for turn in turns if turn.tools),
            altered_by=[", ".join(turn.alterations) for turn in turns if turn.trained and turn.alterations],
            prompt_tokens=sum(len(turn.prompt_ids) for turn in turns),
            sampled_tokens=sum(len(turn.output_ids) for turn in turns),
            interrupted_tokens=sum(len(turn.output_ids) for turn in turns if len(turn.versions) > 1),
            left_out_tokens=sum(len(turn.output_ids) for turn in turns if turn.left_out),
            has_turn_rewards=any(turn.reward is not None or turn.role_reward is not None for turn in turns),
            example=without_call[-1].output_ids[:EXAMPLE_TOKENS] if without_call else [],
        )

    def reward_roles(self, rewards: Mapping[str, float]) -> None:
        """Give roles rewards of their own."""
        for turn in self.turns:
            turn.role_reward = rewards.get(turn.role)

    def trajectories(self) -> Iterator[Trajectory]:
        """Yield one trajectory a leaf, in the order of the leaves."""
        index_of = {turn: index for index, turn in enumerate(self.turns)}
        masked = {turn for turn in self.turns if not turn.trained or turn.left_out}
        for leaf in self.leaves():
            columns: tuple[list[Any], ...] = ([], [], [], [], [], [])
            ids, mask, logprobs, versions, temperatures, turn_index = columns
            for turn in leaf.path():
                prompt, output = len(turn.prompt_ids), len(turn.output_ids)
                ids += turn.prompt_ids + turn.output_ids
                mask += [False] * prompt + [turn not in masked] * output
                logprobs += [0.0] * prompt + turn.logprobs
                versions += [-1] * prompt + [s.version for s in turn.versions for _ in range(s.start, s.end)]
                temperatures += [turn.temperature] * (prompt + output)
                turn_index += [index_of[turn]] * (prompt + output)
                masked.add(turn)
            yield Trajectory(ids, mask, logprobs, versions, temperatures, turn_index, leaf.truncated)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the tree as JSON values; `parent` is an index into the list."""
        index_of: dict[Turn | None, int | None] = {turn: index for index, turn in enumerate(self.turns)} | {None: None}
        return [
            {
                **{name: getattr(turn, name) for name in _STORED},
                "parent": index_of[turn.parent],
                "versions": [asdict(span) for span in turn.versions],
                "images": [asdict(image) for image in turn.images],
            }
            for turn in self.turns
        ]

    @classmethod
    def from_json(cls, rows: list[dict[str, Any]]) -> TokenRecord:
        """Return the inverse of `to_json`."""
        record = cls()
        for row in rows:
            parent = None if row["parent"] is None else record.turns[row["parent"]]
            spans = [VersionSpan(**span) for span in row["versions"]]
            images = [ImageSpan(**image) for image in row.get("images", [])]
            record.turns.append(Turn(**{**row, "parent": parent, "versions": spans, "images": images}))
        return record


_STORED = [column.name for column in fields(Turn) if column.init and column.name != "parent"]
