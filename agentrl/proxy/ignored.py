"""Note what agents ask for and do not get, since it changes nothing that is sampled: each is named once a session to them, once a run in the log."""

from __future__ import annotations

import logging

from agentrl.proxy.completion import CompletionRequest
from agentrl.proxy.model_names import ModelNames
from agentrl.proxy.session import Session

log = logging.getLogger(__name__)

IGNORED_HEADER = "agentrl-ignored"
"""Names what the client asked for and does not get."""
MAX_IGNORED = 64
"""Names that a session, and a run, remember."""


class Ignored:
    """What the agents of one proxy have asked for so far. `model` says which names of it are known."""

    def __init__(self, model: ModelNames) -> None:
        self._model = model
        self._logged: set[str] = set()

    def header(self, session: Session, request: CompletionRequest) -> dict[str, str]:
        """Return the header that names what this session has not been told of yet; empty for nothing.

        Ask for it when the reply is there that takes it: what it names counts as told.
        """
        asked = [*request.ignored, *(["model"] if not self._model.known(request.model) else [])]
        new = sorted({name for name in asked if name not in session.ignored})[: MAX_IGNORED - len(session.ignored)]
        session.ignored.update(new)
        if unlogged := [name for name in new if name not in self._logged][: MAX_IGNORED - len(self._logged)]:
            self._logged.update(unlogged)
            log.warning("Agents ask for what changes no reply, and is ignored: %s (docs/api.md)", ", ".join(unlogged))
        return {IGNORED_HEADER: ", ".join(new)} if new else {}
