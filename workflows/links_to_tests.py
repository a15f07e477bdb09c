"""Links among an agent's files that lead out of them, to the tests: `ln -s /tests/expected.txt answer.txt` is no answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from agentrl.sandboxes.seams import WORK

KEPT_FROM = ("tests", "logs", "solution", "proc", "dev")
"""Folders of the root that no link may lead to; /dev/null may be."""
MOST_LINKS = 40
"""In one path, as for the kernel."""


def links_out(links: Mapping[str, str], writable: Collection[str]) -> set[str]:
    """Return the names of the links of a snapshot that lead to the tests, the reward or what shows them, or that nobody can follow.

    Args:
        links: The agent's links, named relative to the sandbox's folder, and what they hold.
        writable: The folders that they are in, which are links there: see `agentrl.sandboxes.task_image`.
    """
    return {name for name in links if _leads_out(name, links, writable)}


def _leads_out(name: str, links: Mapping[str, str], writable: Collection[str]) -> bool:
    work = _parts(WORK)
    roots = {root: (*work, *_parts(root)) for root in writable}

    def is_inside(place: tuple[str, ...]) -> bool:
        return any(place[: len(root)] == root for root in roots.values())

    place, left = (*work, *_parts(name))[:-1], [name.rpartition("/")[2]]
    followed = 0
    while left:
        part = left.pop()
        if part == "..":
            # Where a link of the image's may have led, its parent is not what the path says.
            if not is_inside(place := place[:-1]):
                return True
            continue
        place = (*place, part)
        if not is_inside(place):
            place = roots.get("/" + "/".join(place), place)
            on_the_way = any(root[: len(place)] == place for root in roots.values())
            kept_from = place[0] in KEPT_FROM or place[: len(work)] == work
            if (
                kept_from
                and not on_the_way
                and not (place == ("dev",) and left == ["null"])
                and place != ("dev", "null")
            ):
                return True
        elif (target := links.get("/".join(place[len(work) :]))) is not None:
            followed += 1
            if followed > MOST_LINKS:
                return True
            place = () if target.startswith("/") else place[:-1]
            left += reversed(_parts(target))
    return not is_inside(place) and place == work[: len(place)]


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part not in ("", "."))
