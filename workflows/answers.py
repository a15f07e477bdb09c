r"""The answer in a reply, and whether it is the right one.

    reply ─► final_answer: \boxed{} ─► or the line after #### ─► or the last number ─┐
    task["answer"]: a text, a number, or a list of those that are right ─► is_right ◄┘ ─► words, numbers with units ─► or formulas

Words are the same but for letter case and blanks, numbers by their value: exactly where both are whole numbers or fractions, and else to six
digits. A unit counts only where both have one. All else is a formula, which the extra `math` compares by its value
(`formulas.py`), and which without it has to be the same text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from pydantic import JsonValue

from agentrl.errors import one_line
from agentrl.workflows.formulas import can_compare_formulas, formulas_agree

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?=\d))")
_HEADING = r"(?!\**(?:[^\W\d_] ?[^\W\d_]|\d+[.):] ).*\n\s*\S)"
_HASHES = re.compile(rf"#{{4,}}+\s*+(?:[A-Za-z ]+:[ \t]*)?{_HEADING}(\S.*?)(?:#{{4,}}|$)", re.MULTILINE)
"""A line after ####, without the name of the answer. One that begins with a word or the number of a step is a heading where more follows."""
_SYMBOLS = str.maketrans({"½": r"\frac12", "¼": r"\frac14", "¾": r"\frac34", "²": "^2", "³": "^3", "∞": r"\infty"})
_SYMBOLS |= dict.fromkeys([*range(0x2010, 0x2014), 0x2212, 0xFE63, 0xFF0D], "-")
_SPELLINGS = [
    (re.compile(r"\\(?:left|right)(?![a-z])|\\displaystyle|\\?\$|\\[!,;:()\[\]]|\\approx\b|≈|\\sim\s*(?=[-.\d])"), ""),
    (re.compile(r"\{\s*\\(?:bf|rm|it)(?![a-z])\s*([^{}]*)\}"), r"\1"),
    (re.compile(r"(?<=\d)_(?=\d{3}(?:_|\b))"), ""),
    (re.compile(r"\{([,:])\}"), r"\1"),
    (re.compile(r"(?<=[\w)}])~"), " "),
    (re.compile(r"(?<![\d.,])(\d{1,3})[ \u00a0\u2009\u202f](?=\d{3}(?![\d/]))"), r"\1"),
    (re.compile(r"(?<=\d)\.?[ \t]*(?:\[\d{1,2}\])+"), ""),
    (re.compile(r"\\times\b|\\cdot\b|[×·]"), "*"),
    (re.compile(r"\\(?:text|math|operatorname|mbox|bf|rm)[a-z]*\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\([%#&_ ])"), r"\1"),
    (re.compile(r"\bRs\.?\s*(?=\d)"), ""),
    (re.compile(r"\^\{?\\circ\}?|\\degree\b|\bdegrees?\b"), "°"),
    (re.compile(r"\bper\s?cent\b"), "%"),
    (re.compile(r"\\[dtc]frac"), r"\\frac"),
    (re.compile(r"\\frac(\d)(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"(\d)\\frac"), r"\1 \\frac"),
    (re.compile(r"\\frac\s*\{(-?[\d.]+)\}\s*\{([\d.]+)\}"), r"\1/\2"),
]
"""Spellings of one thing, in turn: LaTeX of no meaning, groups of digits, citations, texts, degrees, per cent, fractions of numbers."""
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALE = "|".join(_SCALES)
_NUMBER = re.compile(
    r"[€£¥₹]?\s*(?P<sign>[-+]?)\s*[€£¥₹]?(?:(?P<whole>\d+) (?=\d+\s*/\s*\d))?"
    r"(?P<number>(?:\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(?:\.\d*)?(?:e[-+]?\d{1,3})?)"
    rf"(?:\s*/\s*(?P<divisor>\d+))?\s*(?P<scale>{_SCALE})?\s*"
    r"(?P<unit>%|°?(?:(?:/(?=[a-z]{3}))?[a-z]+(?:[ /][a-z]+){0,2}(?:\^\{?[23]\}?)?)?)"
)
_NO_UNIT = "[abdefijknopqrtuvwxyz]"
_NEVER_UNITS = re.compile(rf"(?<!°)\b(?:{_NO_UNIT}|pi|or|and|not|to|plus|minus|times|over|squared|cubed)\b")
"""Letters and words that make another value of the number before them."""
_LONG_UNIT = re.compile(r"\b(kilo|centi|milli|)(meter|metre|gram|liter|litre|second|hour)\b")
_PLURAL = re.compile(r"(?<=ch)es$|(?<=sh)es$|(?<=ss)es$|(?<=x)es$|(?<=\w[^s])s$")
_WORDS = re.compile(r"[^\d\\^=√π_+*/<>|()\[\]{}]*")
_OPERATOR_BLANKS = re.compile(
    r"(?<=[\w)}])[ \t]+([*/^])[ \t]+(?=[\w({\\])|(?<=[\d)}])[ \t]+([-+])[ \t]+(?=[\d({\\])"
    rf"|(?<=\d)[ \t]+(?=(?:{_SCALE})\b|[A-Za-z/]{{1,6}}\^)"
)
"""Blanks inside of a formula or a number, around its operator."""
_TERM = re.compile(r"(?:[A-Za-z0-9_.,^/*+±\\{}()\[\]%!√π°-]|(?<=\d):(?=\d))+")
_LETTER = r"[^\W\d_\u0590-\u1dff\u2e80-\U0003ffff]"
"""A letter of Latin, Greek, Cyrillic or Armenian, where a word has no other word joined to it."""
_BEFORE_NUMBER, _BEFORE_WORD = rf"(?<![\d./^)-])(?<!\d[,:])(?<!{_LETTER})", rf"(?<!\d)(?<!{_LETTER})"
_AFTER_NUMBER, _AFTER_WORD = rf"(?!\d|[.,/:]\d|[\^²³]|{_NO_UNIT}(?!{_LETTER}))", rf"(?!{_LETTER}|[\d+#])"
"""Where no longer number or word holds a shorter one: 10.5, 5x and 10-5 for 5; Parisian for Paris, C++ for C."""
_NO_PRONOUN = rf"(?!['’-]{_LETTER}| (?!is\b){_LETTER})"
"""Where A is no article and I no pronoun."""
_OPTION = re.compile(r"\(?([a-j])(?:[.):] (?!(?:or|and)\b)|\)(?=[\d\\]|\Z))")
"""The letter of a choice, which its text may follow: B. Paris, (B) Paris, (B)42, B)."""
_NAME = re.compile(r"\A(?:(?:the )?(?:final )?answer(?: is)?|option|choice)\b:? (?=\S)")
_NEEDS_EXTRA = re.compile(r"[\\^√π]|\w\s*[+=<>]\s*\w")
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
        if _number(plain) is None and _NEEDS_EXTRA.search(plain) and not can_compare_formulas():
            problem = "is a formula, which needs math-verify: pip install -e '/path/to/agentrl[math]'"
            raise ValueError(f"answer = {one_line(repr(one), 80)} {problem}")
    return answer


def is_right(given: str, answer: JsonValue) -> bool:
    """Return whether a reply's answer agrees with one of a task's. It may block: call it in a thread."""
    return any(agree(given, one) for one in alternatives(answer))


def contains(reply: str, answer: JsonValue) -> bool:
    """Return whether a reply holds an answer of a task, in any letter case; a number or a word not as part of another.

    One letter, as of a choice, has its own case, and is no article or pronoun.
    """
    spelt = [" ".join(_typed(text).split()) for text in (reply, *alternatives(answer))]
    for text in spelt[1:]:
        before = _BEFORE_NUMBER if re.match(r"[+-]?\.?\d", text) else _BEFORE_WORD * bool(re.match(_LETTER, text))
        after = _AFTER_NUMBER if text[-1].isdigit() else _AFTER_WORD * bool(re.match(_LETTER, text[-1]))
        after += _NO_PRONOUN * (text in ("A", "a", "I"))
        fold = str if re.fullmatch(_LETTER, text) else str.casefold
        if re.search(before + re.escape(fold(text)) + after, fold(spelt[0])):
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
    terms: list[str] = _TERM.findall(_OPERATOR_BLANKS.sub(r"\1\2", _respelled(text)))
    for term in reversed(terms):
        bare = term.lstrip("([{*_!,").rstrip(")]}*_!,.")
        if not re.fullmatch(r"[A-Za-z][\w-]*", bare) and re.search(r"\d", bare):
            return bare if _number(bare) else term.rstrip(".,!")
    return ""


def agree(given: str, answer: str) -> bool:
    """Return whether a reply's answer is the right one. It may block: call it in a thread."""
    given, answer = map(_typed, (given, _boxed(answer) or answer))
    one, other = _plain(given), _plain(answer)
    if ("=" in one) != ("=" in other):  # x = 5 for 5
        one, other = (re.sub(r"^[a-z](?:\([a-z]\))?\s*=\s*(?=[^=,]+$)", "", text) for text in (one, other))
    if not one or not other:
        return False
    option = _OPTION.match(one)
    if one.replace(" ", "") == other.replace(" ", "") or (option and option[1] == other):
        return True
    first, second = _number(one), _number(other)
    if first and second:
        return _same_number(first, second)
    if (first or _WORDS.fullmatch(one)) and (second or _WORDS.fullmatch(other)):
        return False
    bases = {tuple(found) for text in (one, other) if (found := re.findall(r"\d_\{?(\w+)", text))}
    # The base of a number is one more subscript to math-verify, which it leaves out.
    return len(bases) < 2 and can_compare_formulas() and formulas_agree(given, answer)


@dataclass(frozen=True)
class _Number:
    value: Fraction
    exact: bool
    """Whether it is a whole number or a fraction."""
    unit: str


def _number(text: str) -> _Number | None:
    """Return the number that a text is; None where it is none, or is multiplied by what follows it."""
    found = _NUMBER.fullmatch(text.casefold()) if len(text) <= LONGEST_NUMBER else None
    if found is None or _NEVER_UNITS.search(found["unit"]) or int(found["divisor"] or 1) == 0:
        return None
    value = Fraction(re.sub(r"[^\d.e+-]", "", found["number"])) / int(found["divisor"] or 1) + int(found["whole"] or 0)
    value *= _SCALES.get(found["scale"], 1)
    unit = _LONG_UNIT.sub(lambda name: name[1][:1] + name[2][0], _PLURAL.sub("", found["unit"]))
    return _Number(-value if found["sign"] == "-" else value, re.search(r"[.e]", found["number"]) is None, unit)


def _same_number(one: _Number, other: _Number) -> bool:
    if one.unit and other.unit and one.unit != other.unit:
        return False
    tolerance = 0 if one.exact and other.exact else TOLERANCE
    shares = [number.value / 100 if number.unit == "%" else number.value for number in (one, other)]
    return any(abs(a - b) <= tolerance * max(abs(a), abs(b)) for a, b in ((one.value, other.value), shares))


def _typed(text: str) -> str:
    """Return a text with its symbols as a keyboard and LaTeX have them."""
    return re.sub(r"√(?:\(([^()]*)\)|(\d+|\w))", r"\\sqrt{\1\2}", text.translate(_SYMBOLS))


def _respelled(text: str) -> str:
    text = _typed(text)
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    return text


def _plain(text: str) -> str:
    """Return a text in one spelling, without what stands around it."""
    plain = " ".join(_respelled(text).casefold().split()).strip("*_`'\"").rstrip(".,;:")
    plain = _NAME.sub("", plain)
    return re.sub(r"\A[(\[{]([\w.°%-]+)[)\]}]\Z", r"\1", plain)
