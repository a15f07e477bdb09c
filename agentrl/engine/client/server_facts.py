"""The facts that a server states of itself and its model, checked before they are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.engine.client.version_tracker import version_number
from agentrl.errors import EngineError

MAX_RANKS = 2**16
Ranks = Annotated[int, Field(ge=1, le=MAX_RANKS)]


@dataclass(frozen=True, kw_only=True)
class ServerAbilities:
    """The abilities of a server, as its probe has found out."""

    reports_spans: bool = True
    """False for SGLang before weight versions had spans: then only mode `abort` says which weights made a token."""
    has_grammar: bool = False
    """Whether it can hold a reply to a JSON schema."""
    takes_images: bool = False
    ranks: int = 1
    """Processes that hold a part of the weights each."""
    incremental: bool = False
    """Whether a state of a streamed reply holds the new tokens alone."""
    takes_interval: bool = True
    """Whether a request may say how many tokens are gathered before they are sent."""
    context_length: int | None = None
    """Tokens that a prompt and its reply may have together; None: it does not say."""


class _Facts(BaseModel):
    # Strict: "x" is no number, and 1 no truth. Servers say much more, which nobody here asks for.
    model_config = ConfigDict(strict=True, extra="ignore")


class ServerInfo(_Facts):
    """`/server_info`. Older servers do not say everything."""

    incremental_streaming_output: bool | None = None
    """Whether a state of a streamed reply holds the new tokens alone."""
    tp_size: Ranks = 1
    pp_size: Ranks = 1
    grammar_backend: str | None = None
    max_req_input_len: Annotated[int, Field(ge=1)] | None = None
    """A prompt must have fewer tokens. It is what the model's context and the KV cache leave, whichever is smaller."""

    @property
    def ranks(self) -> int:
        """Processes that hold a part of the weights each."""
        return self.tp_size * self.pp_size

    @property
    def has_grammar(self) -> bool:
        """Whether it can hold a reply to a JSON schema."""
        return self.grammar_backend not in ("none", None)


class ModelInfo(_Facts):
    """`/model_info`."""

    has_image_understanding: bool | None = None
    weight_version: str | int = "default"


Facts = TypeVar("Facts", bound=_Facts)


def facts_of(kind: type[Facts], said: dict[str, Any], where: str) -> Facts:
    """Return what the server at `where` said, of the right types.

    Raises:
        EngineError: A field is of another; the message names the first.
    """
    try:
        return kind.model_validate(said)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        raise EngineError(_fault(where, str(problem["loc"][0]), problem["input"], problem["msg"])) from None


def served_version(model: ModelInfo, where: str) -> int:
    """Return the number of the weights that a server serves.

    Raises:
        EngineError: It cannot be one.
    """
    version = version_number(model.weight_version)
    if version < 0:
        raise EngineError(_fault(where, "weight_version", model.weight_version, "it is the number of no version"))
    return version


def _fault(where: str, field: str, value: object, problem: str) -> str:
    shown = repr(value)[:80]
    return f"{where} says {field} = {shown}: {problem}. Is it a server that speaks SGLang's protocol?"
