r"""The answer in a reply, and whether it is the right one.

    reply ─► final_answer: \boxed{} ─► or the line after #### ─► or the last number ─┐
    task["answer"]: a text, a number, or a list of those that are right ─► is_right ◄┘ ─► same text, same number ─► or same formula

Texts are the same but for letter case, blanks and LaTeX of no meaning; numbers by their value: exactly where both are whole numbers or
fractions, and else to six digits. A unit counts only where both have one. All else is a formula, which the extra `math` compares
(`formulas.py`), and which without it has to be the same text.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from pydantic import JsonValue

from agentrl.errors import one_line
from agentrl.workflows.formulas import can_compare_formulas, formulas_agree

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?=\d))")
_HEADING = r"(?!\**(?:[^\W\d_] ?[^\W\d_]|\d+[.):] ).*\n\s*\S)"
_HASHES = re.compile(rf"#{{4,}}+\s*+(?:[A-Za-z ]+:[ \t]*)?{_HEADING}(\S.*?)(?:#{{4,}}|$)", re.MULTILINE)
"""A line after ####, without the name of the answer. One that begins with a word or the number of a step is a heading where more follows."""
_SPELLINGS = [
    (re.compile(r"[\u2010-\u2013\u2212]"), "-"),
    (re.compile(r"\\(?:left|right|displaystyle)(?![a-z])|\\?\$|\\[!,;:()\[\]]|\\approx\b|≈"), ""),
    (re.compile(r"\{([,:])\}"), r"\1"),
    (re.compile(r"(?<![\d.,])(\d{1,3})[ \u00a0\u2009\u202f](?=\d{3}(?![\d/]))"), r"\1"),
    (re.compile(r"\\(?:text|math|operatorname|mbox)[a-z]*\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\([%#&_ ])"), r"\1"),
    (re.compile(r"(?<=[\w)}])~"), " "),
    (re.compile(r"\^\{?\\circ\}?|\\degree\b|\bdegrees?\b"), "°"),
    (re.compile(r"\bper\s?cent\b"), "%"),
    (re.compile(r"(?<=\d)\s*(?=\\[dtc]?frac)"), " "),
    (re.compile(r"\\[dtc]?frac\s*(?:\{(-?[\d.]+)\}|(\d))\s*(?:\{([\d.]+)\}|(\d))"), r"\1\2/\3\4"),
]
"""Spellings of one thing, in turn: minus, LaTeX of no meaning, groups of digits, texts, degrees, per cent, fractions of numbers."""
_NUMBER = re.compile(
    r"[€£¥₹]?\s*(?P<sign>[-+]?)[€£¥₹]?(?:(?P<whole>\d+) (?=\d+/\d))?"
    r"(?P<number>(?:\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(?:\.\d*)?(?:e[-+]?\d{1,3})?)"
    r"(?:\s*/\s*(?P<divisor>\d+))?\s*(?P<unit>%|°?(?:(?:/(?=[a-z]{3}))?[a-z]+(?:[ /][a-z]+){0,2})?)"
)
_NO_UNITS = re.compile(
    r"(?<!°)\b(?:[abdefijknopqrtuvwxyz]|pi|or|and|not|to|plus|minus|times|over|squared|cubed|hundred|thousand|[mbt]r?illion)\b"
)
"""Letters and words that make another value of the number before them."""
_PLURAL = re.compile(r"(?<=ch|sh|ss)es$|(?<=x)es$|(?<=\w[^s])s$")
"""The end of a unit in the plural, and not of ms or s."""
_FORMULA = re.compile(r"[\\^√π(\[{]|\w\s*[-+*=<>]\s*\w")
_TERM = re.compile(r"(?:[A-Za-z0-9_.,^/*+±\\{}()\[\]%!√π°-]|(?<=\d):(?=\d))+")
_OPTION = re.compile(r"\(?([a-j])(?:[.):] (?!(?:or|and)\b)|\)(?=[\d\\/]|\Z))")
"""The letter of a choice, which its text may follow: B. Paris, (B) Paris, (B)42, B)."""
_LETTER = "A-Za-z\u00c0-\u024f\u0370-\u03ff\u0400-\u04ff"
"""Letters of scripts that put blanks between words: Latin, Greek and Cyrillic."""
LONGEST_NUMBER = 100
TOLERANCE = Fraction(1, 10**6)


def alternatives(answer: JsonValue) -> list[str]:
    """Return the texts of an answer, each of which is right.

    Raises:
        ValueError: It is neither a text or a number, nor a list of these, or one of them is blank, as every reply holds it.
    """
    given = answer if isinstance(answer, list) else [answer]
    if not given or not all(isinstance(one, str | int | float) and str(one).strip() for one in given):
        problem = "must be a text that is not blank, a number, or a list of these"
        raise ValueError(f"answer = {one_line(repr(answer), 80)} {problem}")
    return [str(one) for one in given]


def check_answer(answer: JsonValue) -> JsonValue:
    """Return an answer, once it is certain that replies can be compared with it.

    Raises:
        ValueError: They cannot, or it is a formula and the extra `math` is not installed.
    """
    for one in alternatives(answer):
        plain = _plain(_boxed(one) or one)
        if _number(plain) is None and _FORMULA.search(plain) and not can_compare_formulas():
            problem = "is a formula, which needs math-verify: pip install -e '/path/to/agentrl[math]'"
            raise ValueError(f"answer = {one_line(repr(one), 80)} {problem}")
    return answer


def is_right(given: str, answer: JsonValue) -> bool:
    """Return whether a reply's answer agrees with one of a task's. It may block: call it in a thread."""
    return any(agree(given, one) for one in alternatives(answer))


def contains(reply: str, answer: JsonValue) -> bool:
    """Return whether a reply holds an answer of a task, in any letter case; a number or a word not as part of another.

    One letter, as of a choice, has its own case.
    """
    reply, *answers = [" ".join(_respelled(text).split()) for text in (reply, *alternatives(answer))]
    for text in filter(None, answers):
        before = r"(?<![\d./^)-])(?<!\d[,:])" if re.match(r"[+-]?\.?\d", text) else r"(?<!\d)"
        after = r"(?!\d|[.,/:]\d|[\^²³])" if text[-1].isdigit() else rf"(?![{_LETTER}\d+#])"
        if re.match(rf"[{_LETTER}\d]", text):
            before += f"(?<![{_LETTER}])"
        flags = re.NOFLAG if re.fullmatch(f"[{_LETTER}]", text) else re.IGNORECASE
        if re.search(before + re.escape(text) + after, reply, flags):
            return True
    return False


def final_answer(text: str) -> str:
    """Return the answer in a reply, after its thought; "" without one."""
    text = text.rpartition("</think>")[2]
    boxed = _boxed(text)
    return last_number(text) if boxed is None else boxed.strip()


def _boxed(text: str) -> str | None:
    """Return the content of the last box, or the line after the last ####; None without either."""
    if boxes := [*_BOX.finditer(text)]:
        depth, begin = 1, boxes[-1].end()
        if bare := re.match(r"[\d.,]*\d", text[begin:] if text[begin - 1] != "{" else ""):
            return bare[0]
        for end in range(begin, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[begin:end]
        return ""
    return next(reversed(_HASHES.findall(text)), None)


def last_number(text: str) -> str:
    """Return the last number in a text, or the formula that it is part of, such as 2^10 or 1/2; "" without one."""
    for term in reversed(_TERM.findall(_respelled(text))):
        bare = term.lstrip("([{*_!,").rstrip(")]}*_!,.")
        if not re.fullmatch(r"[A-Za-z][\w-]*", bare) and re.search(r"\d", bare):
            return str(bare if _number(bare) else term.rstrip(".,!"))
    return ""


def agree(given: str, answer: str) -> bool:
    """Return whether a reply's answer is the right one. It may block: call it in a thread."""
    answer = _boxed(answer) or answer
    one, other = _plain(given), _plain(answer)
    if not one or not other:
        return False
    option = _OPTION.match(one)
    if one.replace(" ", "") == other.replace(" ", "") or (option and option[1] == other):
        return True
    first, second = _number(one), _number(other)
    if first and second:
        return _same_number(first, second)
    is_formula = _FORMULA.search(one) or _FORMULA.search(other)
    return bool(is_formula) and can_compare_formulas() and formulas_agree(given, answer)


class _Number(NamedTuple):
    value: Fraction
    exact: bool
    """Whether it is a whole number or a fraction."""
    unit: str


def _number(text: str) -> _Number | None:
    """Return the number that a text is; None where it is none, or is multiplied by what follows it."""
    found = _NUMBER.fullmatch(text.casefold()) if len(text) <= LONGEST_NUMBER else None
    if found is None or _NO_UNITS.search(found["unit"]) or int(found["divisor"] or 1) == 0:
        return None
    number = found["number"].replace(",", "")
    value = Fraction(number) / int(found["divisor"] or 1) + int(found["whole"] or 0)
    unit = _PLURAL.sub("", found["unit"])
    return _Number(-value if found["sign"] == "-" else value, re.search(r"[.e]", number) is None, unit)


def _same_number(one: _Number, other: _Number) -> bool:
    if one.unit and other.unit and one.unit != other.unit:
        return False
    tolerance = 0 if one.exact and other.exact else TOLERANCE
    shares = [number.value / 100 if number.unit == "%" else number.value for number in (one, other)]
    return any(abs(a - b) <= tolerance * max(abs(a), abs(b)) for a, b in ((one.value, other.value), shares))


def _respelled(text: str) -> str:
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    return text


def _plain(text: str) -> str:
    """Return a text in one spelling, without what stands around it."""
    plain = " ".join(_respelled(text).casefold().split()).strip("*_`'\"").rstrip(".,;:")
    plain = re.sub(r"\A[(\[{]([\w.°%-]+)[)\]}]\Z", r"\1", plain)
    return re.sub(r"\A[a-z]\s*=\s*(?=[^=,]+\Z)", "", plain)  # 5 of x = 5
