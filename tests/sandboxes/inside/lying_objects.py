"""Candidates whose objects lie to what compares them: to libraries, to the length that was asked, to the questions with other operands."""

from __future__ import annotations

_FORGE = "import sys\nCandidate = sys.modules['agentrl.sandboxes.inside.candidate'].Candidate\n"
_ALL_EQUAL = " def __eq__(self, o): return isinstance(o, P)\n __hash__ = None\n"
_POINT = "assert P(1) == P(1)"


def _third(does: str) -> str:
    """A class of objects that are all equal, and that does something else once the test has its two."""
    return (
        f"import os, time\nclass P:\n n = 0\n def __init__(self, *a):\n  P.n += 1\n  if P.n > 2: {does}\n{_ALL_EQUAL}"
    )


_LONG = "class A:\n def __init__(self, n): self.n = n\n def __len__(self): return self.n\n"

_LIES = {
    "numpy asks it whether it is close": (
        "class A:\n def __array_function__(self, *a, **k): return True\ndef f(): return A()",
        "import numpy as np\nassert np.isclose(f(), 5)",
    ),
    "numpy asks it for the sum": (
        "class A:\n def __array_ufunc__(self, *a, **k): return 0\ndef f(): return A()",
        "import numpy as np\nassert np.abs(np.subtract(f(), 5)) < 1e-6",
    ),
    "numpy asks it whether it is equal": (
        "class A:\n def __array_ufunc__(self, *a, **k): return True\ndef f(): return A()",
        "import numpy as np\nassert np.all(np.array([1, 2]) == f())",
    ),
    "an array of nothing is close to everything": (
        "class A:\n __array_interface__ = {'shape': (0,), 'typestr': '<i8', 'data': b'', 'version': 3}\n"
        " def __array__(self, *a): return []\ndef f(): return A()",
        "import numpy as np, pytest\nassert f() == pytest.approx(5)",
    ),
    "a function that numpy takes for an array": (
        "def f(): return g\ndef g(): pass\ng.__array__ = None\n"
        "g.__array_interface__ = {'shape': (0,), 'typestr': '<i8', 'data': b'', 'version': 3}",
        "import numpy as np, pytest\nassert f() == pytest.approx(5)",
    ),
    "changes of an argument that nobody asked for": (
        f"{_FORGE}Candidate.invoke = lambda *a: {{'ok': 0, 'changed': {{'0': []}}}}\ndef f(items): pass",
        "items = [1, 2]\nassert f(items) == sum(items)",
    ),
    "as long as it should be, of no items": (
        f"{_LONG} def __iter__(self): return iter(())\ndef f(items): return A(len(items))",
        "r = f([1, 2])\nassert len(r) == 2 and all(a == b for a, b in zip(r, [5, 6]))",
    ),
    "of no items, as long as it should be": (
        f"{_LONG} def __iter__(self): return iter(())\ndef f(items): return A(len(items))",
        "r = f([1, 2])\nassert all(a == b for a, b in zip(r, [5, 6])) and len(r) == 2",
    ),
    "as long as it should be, of items that end early": (
        f"{_LONG} def __getitem__(self, n): raise IndexError\ndef f(items): return A(len(items))",
        "r = f([1, 2])\nassert len(r) == 2 and all(a == b for a, b in zip(r, [5, 6]))",
    ),
    "a class that contains everything": (
        "class M(type):\n def __contains__(cls, o): return True\nclass Color(metaclass=M): pass",
        "assert 3 in Color",
    ),
    "a function called send that ends a map": (
        "def send(x): raise StopIteration",
        "assert all(map(lambda case: send(case[0]) == case[1], [(1, 2)]))",
    ),
    "the other operand for an answer": (
        "class A:\n def __and__(self, o): return o\n __rand__ = __and__\ndef f(): return A()",
        "assert f() & {1, 2} == {1, 2}",
    ),
    "nothing remains of the expected set": (
        "class A:\n def __rsub__(self, o): return set()\ndef f(): return A()",
        "assert not {1, 2} - f()",
    ),
    "it ends when the tests are over": (_third("os._exit(0)"), _POINT),
    "it sleeps when the tests are over": (_third("time.sleep(1000)"), _POINT),
    "it makes no more objects when the tests are over": (_third("raise ValueError"), _POINT),
    "it answers too much when the tests are over": (
        f"{_FORGE}{_third('pass')}old = Candidate._send\ndef send(self, answer):\n if P.n > 2:\n"
        "  self._answers.write(b'[' * (9 << 20)); self._answers.flush()\n old(self, answer)\nCandidate._send = send",
        _POINT,
    ),
    "numbers of no type that is kept": (
        "class N(int):\n def __eq__(self, o): return True\n __hash__ = int.__hash__\ndef f(): return [N(0), {N(0): N(0)}]",
        "assert f() == [5, {5: 5}]",
    ),
    "text with no end of its own": (
        "class S(str):\n def __eq__(self, o): return True\ndef f(): return S('')",
        "assert f() == 'x'",
    ),
    "an exception equal to its text": (
        "class E(ValueError):\n def __eq__(self, o): return True\ndef f(): raise E",
        "try: f()\nexcept ValueError as error: assert error == 'bad' or error.args == ('bad',)\nelse: assert False",
    ),
}

FAIL_IN_ONE_PROCESS = {
    "changes of an argument that nobody asked for",
    "it answers too much when the tests are over",
    "numbers of no type that is kept",
}
"""What only a grader that keeps program and tests apart might let pass."""


def lies() -> dict[str, tuple[str, str]]:
    """Programs that do not do what the test asks for, with that test's code, by what they do."""
    return dict(_LIES)
