"""The fields of an address of the page: ?task=3&reason=failed&sort=best&limit=50."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from agentrl.errors import UsageError
from agentrl.record.end_reason import EndReason
from agentrl.run.open_run import conditions
from agentrl.store.episodes import Order

MAX_LIMIT = 10_000
_Whole = Annotated[int, Field(ge=0, lt=2**63)]


class EpisodeQuery(BaseModel):
    """Which episodes, or which part of a curve. A filter that is not there lets all pass."""

    task: _Whole | None = None
    group: _Whole | None = None
    session: str | None = None
    """The id of a session of a service."""
    step: _Whole | None = None
    reason: EndReason | Literal["failed"] | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    min_staleness: int | None = None
    role: str = ""
    text: str = ""
    best_of_group: bool | None = None
    cut: bool = False
    """Only those with a reply within which the weights changed."""
    id: _Whole | None = None
    sort: Order = "newest"
    cursor: _Whole | None = None
    """The id of the last episode of the page before."""
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50
    after: int = -1
    """The step after which metrics are read."""
    size: Annotated[int, Field(ge=1)] = 1
    """Groups in a point of the curve of rewards."""

    @property
    def where(self) -> dict[str, Any]:
        """The conditions, as `list_episodes` takes them."""
        return conditions(**vars(self))


def read_query(query: Mapping[str, str]) -> EpisodeQuery:
    """Return the query in the fields of the page's address. An empty one is as one that is not there.

    Raises:
        UsageError: A field has no value that it may have.
    """
    try:
        return EpisodeQuery.model_validate({name: value for name, value in query.items() if value})
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{first['loc'][0]} = {query[str(first['loc'][0])]!r}: {first['msg']}") from None
