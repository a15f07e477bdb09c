"""The problems that a check found, each with its remedy, and the error that reports all of them at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentrl.errors import CheckFailedError


@dataclass
class Problems:
    """The problems of one subject, such as an environment; each is noted once."""

    subject: str
    found: dict[str, str] = field(default_factory=dict)
    """Remedies by problem."""

    def add(self, problem: str, remedy: str) -> None:
        """Note a problem, unless one with the same remedy is there already: it is the same mistake seen again."""
        if remedy not in self.found.values():
            self.found.setdefault(problem, remedy)

    def raise_any(self) -> None:
        """Raise what was found, if anything was.

        Raises:
            CheckFailedError: Every problem, with its remedy.
        """
        if self.found:
            count = "1 problem" if len(self.found) == 1 else f"{len(self.found)} problems"
            lines = [
                f"{number}. {problem}\n   {remedy}" for number, (problem, remedy) in enumerate(self.found.items(), 1)
            ]
            raise CheckFailedError("\n".join([f"{self.subject} has {count}:", *lines]))
