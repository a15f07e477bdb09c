"""Every error crosses a process boundary as it is."""

from __future__ import annotations

import pickle

from agentrl import errors


def test_an_error_pickles_with_its_message() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.AgentRLError)]
    raised = [kind("what happened, and what to do") for kind in kinds]
    there = pickle.loads(pickle.dumps(raised))
    assert [(type(error), str(error)) for error in there] == [(type(error), str(error)) for error in raised]
