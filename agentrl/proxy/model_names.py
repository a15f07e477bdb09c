"""Which names of the model are answered, and as which role: agents hard-code the names of models that are not here.

proxy.model_names            a name that it holds     another name
absent                       -                        answered
{"gpt-*" = "nano"}           answered                 404
{"haiku-*" = "role:side"}    answered as KEY.side     404
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.config.run import ROLE_PREFIX
from agentrl.errors import ConfigError
from agentrl.proxy.errors import ApiError
from agentrl.proxy.limits import ProxyLimits
from agentrl.proxy.session import SessionRole


@dataclass(frozen=True)
class ModelNames:
    """The names of one served model. `served` is the one that it has itself, which is always answered."""

    served: str
    limits: ProxyLimits

    def listed(self) -> list[str]:
        """Return the names that can be told: the served one, and those that the configuration spells out."""
        spelled = [name for name in self.limits.model_names or {} if not name.endswith("*") and name != self.served]
        return [self.served, *spelled]

    def known(self, name: str) -> bool:
        """Return whether the configuration speaks of a name, so that it is no surprise."""
        return name == self.served or self._meaning(name) is not None

    def check(self, name: str) -> None:
        """Check that a name is answered.

        Raises:
            ApiError: 404: it is not.
        """
        if self.limits.model_names is not None and not self.known(name):
            message = f"The model '{name}' does not exist; `proxy.model_names` does not name it."
            raise ApiError(404, message, param="model", code="model_not_found")

    def role(self, asking: SessionRole, name: str) -> SessionRole:
        """Return the role whose call a request for `name` is. A key that names a role itself (`KEY.NAME`) has the last word.

        Raises:
            EpisodeError: The session cannot have that role.
        """
        meaning = self._meaning(name) or self.served
        if asking.name or not meaning.startswith(ROLE_PREFIX):
            return asking
        return asking.session.role(meaning.removeprefix(ROLE_PREFIX))

    def _meaning(self, name: str) -> str | None:
        names = self.limits.model_names or {}
        if name in names:
            return names[name]
        fitting = [start for start in names if start.endswith("*") and name.startswith(start[:-1])]
        return names[max(fitting, key=len)] if fitting else None


def check_names(served: str, names: Mapping[str, str] | None) -> None:
    """Check that the configuration maps names to what is there.

    Raises:
        ConfigError: It maps one to a model that is not served.
    """
    for name, meaning in (names or {}).items():
        if meaning != served and not meaning.startswith(ROLE_PREFIX):
            raise ConfigError(
                f"`proxy.model_names` maps {name!r} to {meaning!r}, which is not served; map it to {served!r}, or to a role ({ROLE_PREFIX}NAME)"
            )


def model_list(names: Sequence[str], context_length: int) -> dict[str, Any]:
    """Return the list of the one model that there is, under each of its names, in one shape that all clients read."""
    models = [one_model(name, context_length) for name in names]
    ends = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
    return {"object": "list", "data": models, **ends, "models": models}


def one_model(name: str, context_length: int) -> dict[str, Any]:
    """Return the description of one model, in one shape that OpenAI's, Anthropic's and Google's clients read."""
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "agentrl",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "name": f"models/{name}",
        "baseModelId": name,
        "version": "1",
        "displayName": name,
        "inputTokenLimit": context_length,
        "outputTokenLimit": context_length,
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
    }
