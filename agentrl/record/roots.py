"""Tell what each conversation of an episode is to its agent: docs/token-record.md in code.

    main          a conversation of the agent itself
    compacted     the same, begun anew with text that was sampled before: a summary, or a history that was rewritten
    sub_agent     another agent, with its own system prompt or tools, whose last words became part of a conversation
    side_call     beside the conversations: for a smaller model, or a single question that nothing came of

A root is a prompt that goes on from no turn, with all that was sampled from it on. It is known by its ids: what is asked twice in
the same words, or answered with several choices, is one root. The roots of each role are looked at by themselves.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from agentrl.record.trajectory import RootKind, Turn

MIN_HELD_CHARACTERS = 12
"""A shorter text is held by a message only where it is all of the message."""
NAME_WORDS = 8
"""Words of a system prompt that a sub-agent is named by: what follows may differ from episode to episode."""
CHUNK_MODULUS = 16
"""A chunk ends with an id that this divides, once it has as many ids at least."""

_SPACE = re.compile(r"(?:\s|\\[nrt])+")


@dataclass(frozen=True)
class MessageText:
    """A message of a prompt. Whoever keeps many of them lets equal ones share their text."""

    text: str
    by_assistant: bool = False

    @cached_property
    def normal(self) -> str:
        """The text without differences of white space, and of how JSON writes it."""
        return _normal(self.text)

    def holds(self, text: str) -> bool:
        """Return whether it is, or contains, a text in its normal form."""
        if not text:
            return False
        return self.normal == text or (len(text) >= MIN_HELD_CHARACTERS and text in self.normal)


@dataclass(frozen=True)
class TurnText:
    """The texts of a turn: what its request added to its parent's path, and what was replied."""

    system: str = ""
    """The system prompt, in the first turn of a conversation."""
    tools: tuple[str, ...] = ()
    """Names of the tools that it offered."""
    tool_set: str = ""
    """A digest of those tools; "" for none."""
    asked: tuple[MessageText, ...] = ()
    replied: tuple[str, ...] = ()
    """Texts of the reply: what it says, and the texts in the arguments of its tool calls."""
    complete: bool = True
    """False: nothing is known of what was said, as of a raw prompt of ids."""

    @cached_property
    def normal_replies(self) -> tuple[str, ...]:
        """The texts of the reply in their normal form."""
        return tuple(normal for text in self.replied if (normal := _normal(text)))


@dataclass(frozen=True, kw_only=True)
class Root:
    """One root of an episode, as `rollout.trajectories` is asked about it."""

    kind: RootKind
    """What it is to the agent."""
    name: str
    """The role that a sub-agent is trained under by default; "" for others."""
    role: str
    """The role that made its calls; "" where the workflow names none."""
    model: str
    """The model name that its first call asked for."""
    system: str
    """Its system prompt."""
    tools: tuple[str, ...]
    """Names of the tools that its first call offered."""
    reply: str
    """The text of its last reply."""
    turns: tuple[Turn, ...] = field(repr=False)
    """Its turns, in the order of the record."""


@dataclass(eq=False)
class _Tree:
    """A root before it is known what it is."""

    members: list[int]
    """Its turns, as indices into the record's."""
    turns: Sequence[Turn] = field(repr=False)
    texts: Sequence[TurnText] = field(repr=False)

    def __post_init__(self) -> None:
        self.first = self.members[0]
        self.role, self.model = self.turns[self.first].role, self.turns[self.first].model
        self.text = self.texts[self.first]
        parents = {id(self.turns[index].parent) for index in self.members}
        self.leaves = [index for index in self.members if id(self.turns[index]) not in parents]
        self.later = [index for index in self.members if self.turns[index].parent is not None]
        """Its turns but the first."""
        self.depth = max(len(self.turns[leaf].path()) for leaf in self.leaves)
        """Turns of its longest path."""

    @cached_property
    def last_words(self) -> list[tuple[int, str]]:
        """(turn, text) of what its leaves said."""
        return [(index, text) for index in self.leaves for text in self.texts[index].normal_replies]

    def differs_from(self, other: _Tree) -> bool:
        """Whether it is of another agent."""
        return (self.text.system, self.text.tool_set) != (other.text.system, other.text.tool_set)

    def is_held_in(self, prompts: Sequence[int], *, by_others: bool) -> bool:
        """Whether its last words are part of a later prompt; `by_others`: as what the agent was told, not as what it said."""
        return any(
            index > leaf and message.holds(text)
            for leaf, text in self.last_words
            for index in prompts
            for message in self.texts[index].asked
            if not (by_others and message.by_assistant)
        )

    @cached_property
    def begins_with_sampled_text(self) -> bool:
        """Whether its first prompt holds what was sampled before it began."""
        sampled = {text: None for index in reversed(range(self.first)) for text in self._sampled(index)}
        return any(message.holds(text) for message in self.text.asked for text in sampled)

    def _sampled(self, index: int) -> tuple[str, ...]:
        return self.texts[index].normal_replies if self.turns[index].role == self.role else ()


def roots_of(turns: Sequence[Turn], texts: Sequence[TurnText]) -> list[Root]:
    """Return the roots of an episode, each with what it is, in the order of their first turns.

    Args:
        turns: The turns of its record.
        texts: [turn] the texts of each turn.

    Returns:
        The roots. Every turn is in one of them.
    """
    trees = list(_trees(turns, texts))
    kinds: dict[int, RootKind] = {}
    for role in {tree.role for tree in trees}:
        own = [tree for tree in trees if tree.role == role]
        main = _main(own)
        for tree in own:
            kinds[tree.first] = _kind(tree, main, own)
    return [_root(tree, kinds[tree.first]) for tree in trees]


def _trees(turns: Sequence[Turn], texts: Sequence[TurnText]) -> Iterator[_Tree]:
    members: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    of: dict[int, list[int]] = {}
    for index, turn in enumerate(turns):
        found = (
            members.setdefault((turn.role, tuple(turn.prompt_ids)), []) if turn.parent is None else of[id(turn.parent)]
        )
        found.append(index)
        of[id(turn)] = found
    for found in members.values():
        yield _Tree(found, turns, texts)


def _main(trees: Sequence[_Tree]) -> _Tree:
    """Return the main conversation, which the others are compared with.

    Of those that lead back into no conversation that began before, one with tools, then with the most turns, then the earliest.
    """
    outermost = [tree for tree in trees if not _returns(tree, trees)]
    return max(outermost, key=lambda tree: (bool(tree.text.tools), tree.depth, -tree.first))


def _returns(tree: _Tree, trees: Sequence[_Tree]) -> bool:
    """Whether its last words went back into a conversation that had begun before it."""
    before = [other for other in trees if other.first < tree.first]
    return any(tree.is_held_in(other.later, by_others=True) for other in before)


def _kind(tree: _Tree, main: _Tree, trees: Sequence[_Tree]) -> RootKind:
    known = all(tree.texts[index].complete for other in trees for index in other.members)
    single_role = all(tree.turns[index].role == tree.role for index in tree.members)
    rewarded = any(tree.turns[index].reward is not None for index in tree.members)
    if tree.model != main.model and tree is not main and single_role and not rewarded:
        return "side_call"
    if not known:
        return "main"
    others = [other for other in trees if other is not tree]
    if single_role and tree.differs_from(main):
        alike = [index for other in others if not other.differs_from(main) for index in other.members]
        if _returns(tree, trees) or tree.is_held_in(alike, by_others=True):
            return "sub_agent"
    if tree.text.system == main.text.system and tree.begins_with_sampled_text:
        return "compacted"
    single = tree.depth == 1 and not tree.text.tools and (main.depth > 1 or bool(main.text.tools))
    if single and single_role and not rewarded:
        later = [index for other in others for index in other.members]
        if not tree.is_held_in(later, by_others=False):
            return "side_call"
    return "main"


def _root(tree: _Tree, kind: RootKind) -> Root:
    replied = tree.texts[tree.members[-1]].replied
    return Root(
        kind=kind,
        name=sub_agent_name(tree.text, tree.role) if kind == "sub_agent" else "",
        role=tree.role,
        model=tree.model,
        system=tree.text.system,
        tools=tree.text.tools,
        reply=replied[0] if replied else "",
        turns=tuple(tree.turns[index] for index in tree.members),
    )


def sub_agent_name(text: TurnText, role: str) -> str:
    """Return the role of a sub-agent, which is the same in every episode: by the first words of its system prompt, and its tools."""
    known_by = [text.system.split()[:NAME_WORDS], sorted(text.tools)]
    digest = hashlib.blake2b(json.dumps(known_by).encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"{role}-sub-agent-{digest}" if role else f"sub-agent-{digest}"


def rerendered_tokens(turns: Sequence[Turn]) -> int:
    """Return how many prompt tokens of an episode's roots repeat what an earlier turn already held.

    Ids are cut into chunks where they say so themselves, so that what moved is found. A chunk counts where an earlier turn had it.

    Args:
        turns: The turns of its record.

    Returns:
        The tokens; 0 for an episode of one root.
    """
    seen: set[tuple[int, ...]] = set()
    repeated = 0
    if sum(turn.parent is None for turn in turns) < 2:
        return 0
    for turn in turns:
        if turn.parent is None:
            chunks = _chunks(turn.prompt_ids)
            repeated += sum(len(chunk) for chunk in chunks if chunk in seen)
            seen.update(chunks)
        else:
            seen.update(_chunks([*turn.parent.output_ids, *turn.prompt_ids]))
    return repeated


def _chunks(ids: Sequence[int]) -> list[tuple[int, ...]]:
    chunks: list[tuple[int, ...]] = []
    start = 0
    for index, token in enumerate(ids, 1):
        if token % CHUNK_MODULUS == 0 and index - start >= CHUNK_MODULUS:
            chunks.append(tuple(ids[start:index]))
            start = index
    return chunks


def _normal(text: str) -> str:
    return _SPACE.sub(" ", text).replace('\\"', '"').strip()
