"""Variables in the texts of a compose file, filled in as Docker Compose fills them in from its environment.

    $$                          a dollar sign
    $NAME  ${NAME}              the variable; nothing where it is not set
    ${NAME:-text}  ${NAME-text}      the text where the variable is not set or empty; where it is not set
    ${NAME:+text}  ${NAME+text}      the text where the variable is set and not empty; where it is set
    ${NAME:?text}  ${NAME?text}      a refusal with the text where the variable is not set or empty; where it is not set

A text in braces may have variables of its own. Anything else after a dollar sign is refused, as Compose refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from agentrl.errors import one_line

LookUp = Callable[[str], str | None]
"""The value of a variable by its name; None: it is not set."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED = re.compile(rf"({_NAME.pattern})(?:(:?)([-+?])(.*))?", re.DOTALL)


def interpolate(text: str, look_up: LookUp) -> str:
    """Return a text with its variables filled in.

    Args:
        text: The text.
        look_up: What a variable is.

    Raises:
        ValueError: A dollar sign is followed by no variable, or a variable that must be set is not; the message says what to write.
    """
    result, at = "", 0
    while (dollar := text.find("$", at)) >= 0:
        result += text[at:dollar]
        after = dollar + 1
        if text.startswith("$", after):
            result, at = f"{result}$", after + 1
        elif (named := _NAME.match(text, after)) is not None:
            result, at = result + (look_up(named[0]) or ""), named.end()
        else:
            end = _closing_brace(text, after)
            braced = None if end is None else _BRACED.fullmatch(text, after + 1, end)
            if end is None or braced is None:
                raise ValueError(
                    f"{one_line(repr(text[dollar:]), 60)} begins no variable, such as $NAME, ${{NAME}} or ${{NAME:-default}}; a dollar "
                    "sign itself is $$"
                )
            result, at = result + _value(braced, look_up), end + 1
    return result + text[at:]


def _closing_brace(text: str, start: int) -> int | None:
    """Return where the braces end that open at `start`; None where none open, or none close. Those of variables in them come in pairs."""
    if not text.startswith("{", start):
        return None
    depth, at = 1, start + 1
    while at < len(text):
        if text.startswith("${", at):
            depth, at = depth + 1, at + 2
            continue
        if text[at] == "}":
            depth -= 1
            if not depth:
                return at
        at += 1
    return None


def _value(braced: re.Match[str], look_up: LookUp) -> str:
    name, colon, sign, text = braced.groups()
    value = look_up(name)
    is_there = value is not None and not (colon and not value)
    if sign is None:
        return value or ""
    if sign == "+":
        return interpolate(text, look_up) if is_there else ""
    if is_there:
        return value or ""
    if sign == "-":
        return interpolate(text, look_up)
    why = one_line(interpolate(text, look_up), 200)
    raise ValueError(f"the variable {name} must be set{f', {why}' if why else ''}; set it")
