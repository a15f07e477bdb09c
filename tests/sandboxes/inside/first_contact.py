"""A class whose objects take on the value of the first that they are compared with, and tests that an honest class passes."""

from __future__ import annotations

from textwrap import dedent

HONEST = """
class V:
    def __init__(self, x=0): self.x = x
    def __eq__(self, other): return isinstance(other, V) and self.x == other.x
    def __hash__(self): return hash(self.x)
    def __add__(self, other): return V(self.x + other.x)
    def next(self): return V(self.x + 1)
    def __iter__(self): return iter([V(0), V(self.x)])
    @property
    def half(self): return V(self.x / 2)
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def double(self): self.items = [V(2 * item.x) for item in self.items]
    def pop(self): return self.items.pop()
    def all(self): return self.items
def middle(a, b): return V((a.x + b.x) / 2)
def both(a, b): return {"least": [min(a, b, key=lambda v: v.x).next()], "most": (max(a, b, key=lambda v: v.x).next(), 1)}
"""

CHEAT = """
class V:
    blank = False
    def __init__(self, x=0): self.x = x
    def __eq__(self, other):
        if not isinstance(other, V): return False
        if self.blank and not other.blank: self.x, self.blank = other.x, False
        elif other.blank and not self.blank: other.x, other.blank = self.x, False
        return self.x == other.x
    def __hash__(self): return 1
    def __add__(self, other): return blank()
    def next(self): return blank()
    def __iter__(self): return iter([blank(), blank()])
    @property
    def half(self): return blank()
def blank():
    made = V()
    made.blank = True
    return made
class Stack:
    def __init__(self): self.n = 0
    def push(self, item): self.n += 1
    def double(self): pass
    def pop(self):
        if self.n == 0: raise IndexError
        self.n -= 1
        return blank()
    def all(self): return [blank() for _ in range(self.n)]
def middle(a, b): return blank()
def both(a, b): return {"least": [blank()], "most": (blank(), 1)}
"""

_TESTS = {
    "an operator": "assert V(1) + V(2) == V(3)",
    "an operator, after what is expected": "expected = V(3)\nassert expected == V(1) + V(2)",
    "a method": "assert V(1).next() == V(2)",
    "a method of a method's": "assert V(1).next().next() == V(3)",
    "a property": "assert V(4).half == V(2)",
    "a function": "assert middle(V(2), V(4)) == V(3)",
    "items of a function's": "assert both(V(1), V(2)) == {'least': [V(2)], 'most': (V(3), 1)}",
    "an iterator": "assert list(V(3)) == [V(0), V(3)]",
    "what was put in": """
        stack = Stack()
        stack.push(V(1))
        stack.push(V(2))
        stack.double()
        assert stack.pop() == V(4)
        assert stack.pop() == V(2)
    """,
    "all that was put in": """
        stack = Stack()
        stack.push(V(1))
        stack.double()
        assert stack.all() == [V(2)]
    """,
}


def tests() -> dict[str, str]:
    """Test code that HONEST passes, by what it gets the objects from that it compares."""
    return {name: dedent(code).strip() for name, code in _TESTS.items()}
