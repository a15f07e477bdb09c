"""Stand-ins for a candidate's objects, classes and functions, as test code meets them.

Each operator goes to the candidate where the object's own class has it, and comes back as the class answers it: a class without
an order has none here. What is asked of an object is asked through `Session`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agentrl.sandboxes.inside.special_methods import COMPARISONS, SPECIAL_METHODS, goes_through_candidates, may_be_asked

if TYPE_CHECKING:
    from agentrl.sandboxes.inside.candidate_session import Session


class Reference:
    """Where the original of a stand-in is: by number in one of the candidate's processes, or by name in its module."""

    def __init__(self, session: Session, number: int | None = None, process: int = 0, path: str | None = None) -> None:
        self.session = session
        self.number = number
        self.process = process
        self.path = path
        self.made_by: tuple[Any, tuple[Any, ...], dict[str, Any]] | None = None
        """What the test called to get it, with what."""
        self.made: tuple[str, int] | None = None
        """In which test it was made, as the how many-th object of a class."""
        self.times_made = 0
        """How often its class has given it."""
        self.first_made_in = ""
        """The test in which its class has given it first."""
        self.touched = False
        """Whether the test has done more with it than to compare it."""
        self.called = False
        """Whether the test has called a method of it."""
        self.change: Any = None
        """What the test has done to it last that has changed it for certain."""
        self.another = False
        """Whether it is another one than in the first run: see `replay`."""
        self.instead_of: Callable[[], Any] | None = None
        """Makes the object of the first run in whose place it is."""
        self.beside: list[Any] = []
        """Other objects that were made beside it, to be compared in its place."""
        self.is_data = False
        """Whether its class derives from one of plain data."""
        self.by_operator = False
        """Whether an operator gave it."""
        self.told = False
        """Whether it was made of plain data by an operator of an object that a function gave: it may not be measured."""
        self.shifted = False
        """Whether it is the sum or the difference of an object and a number of the test's."""
        self.named = False
        """Whether the test names this class."""
        self.makes_dicts = False
        """Whether calling this class makes a plain dict."""
        self.generic = False
        """Whether this class takes classes in brackets."""
        self.asked_for_instances = False
        """Whether this class itself says what its instances and subclasses are."""
        self.fields: tuple[str, ...] = ()
        """Of a class of named tuples."""
        self.more_than_fields = False
        """Whether that has methods of its own, too."""
        self.compares = False
        """Whether it is the candidate's answer to a comparison."""
        self.length: tuple[int, int] | None = None
        """What it last said its length is, and how many changes the test had made by then."""
        self.items: tuple[int, int] | None = None
        """How many items it last gave, and how many changes the test had made by then."""
        self.iterates: tuple[Reference, int] | None = None
        """Of an iterator: what it iterates over, and how many items it has given."""


def reference(stand_in: Any) -> Reference:
    """Return what a stand-in stands for."""
    found: Reference = object.__getattribute__(stand_in, "_agentrl")
    return found


def reference_of_class(stand_in: Any) -> Reference:
    """Return what the stand-in of a class stands for."""
    found: Reference = type.__getattribute__(stand_in, "_agentrl")
    return found


class RemoteClass(type):  # noqa: D101
    # A class of the candidate's: a docstring here would be shown in place of the candidate's.

    _agentrl: Reference

    def __new__(mcs, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> RemoteClass:
        """Make a class that derives from a stand-in, or refuse to."""
        if "_agentrl" not in space:  # a class statement of the test's
            needs: Any = next(base for base in bases if isinstance(base, RemoteClass))
            reference_of_class(needs).session.refuse(
                f"to derive its class {name} from the candidate's {needs.__name__}"
            )
        return super().__new__(mcs, name, bases, space)

    def __call__(cls, /, *args: Any, **kwargs: Any) -> Any:
        """Make an object."""
        return reference_of_class(cls).session.call(cls, None, args, kwargs)

    def __getattr__(cls, name: str) -> Any:
        if not may_be_asked(name):
            raise AttributeError(name)
        return reference_of_class(cls).session.attribute(cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        session = reference_of_class(cls).session
        if name == "_abc_impl":
            super().__setattr__(name, value)
        elif name.startswith("__"):
            session.refuse(f"to set {name} of the candidate's class {cls.__name__}")
        else:
            session.set_attribute(cls, name, value)

    def __delattr__(cls, name: str) -> None:
        session = reference_of_class(cls).session
        if name.startswith("__"):
            session.refuse(f"to delete {name} of the candidate's class {cls.__name__}")
        session.delete_attribute(cls, name)

    @property  # type: ignore[misc]
    def __dict__(cls) -> Any:  # type: ignore[override]
        """The attributes of the original's own, as `vars` gives them and `mock.patch` looks for them."""
        return ClassNames(cls)

    def __dir__(cls) -> Any:
        return reference_of_class(cls).session.special(cls, "__dir__", ())

    @property
    def __annotations__(cls) -> Any:  # type: ignore[override]
        return reference_of_class(cls).session.attribute(cls, "__annotations__")

    @property
    def __doc__(cls) -> Any:  # type: ignore[override]
        return reference_of_class(cls).session.attribute(cls, "__doc__")

    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance) or cls._says(
            isinstance(type(instance), RemoteClass), "instance", instance
        )

    def __subclasscheck__(cls, kind: Any) -> bool:
        return super().__subclasscheck__(kind) or cls._says(isinstance(kind, RemoteClass), "subclass", kind)

    def _says(cls, asked: bool, what: str, other: Any) -> bool:
        where = reference_of_class(cls)
        if not (asked and where.asked_for_instances):
            return False
        return bool(where.session.special(cls, f"__{what}check__", (other,)))

    def __iter__(cls) -> Any:
        return reference_of_class(cls).session.special(cls, "__iter__", ())

    def __len__(cls) -> int:
        try:
            length: int = reference_of_class(cls).session.special(cls, "__len__", ())
        except AttributeError:
            raise TypeError(f"object of type {cls.__name__!r} has no len()") from None
        return length

    def __bool__(cls) -> bool:
        return True

    def __getitem__(cls, key: Any) -> Any:
        if reference_of_class(cls).generic:  # `Stack[int]` is a Stack
            return cls
        return reference_of_class(cls).session.special(cls, "__getitem__", (key,))

    def __contains__(cls, key: Any) -> bool:
        return bool(reference_of_class(cls).session.combine(cls, "__contains__", (key,)))


class ClassNames(Mapping[str, Any]):
    """The attributes of a candidate's class: it has those that the original has; what Python itself looks for is the stand-in's."""

    def __init__(self, of: RemoteClass) -> None:
        self._of = of

    def _ask(self, name: str, *args: Any) -> Any:
        session = reference_of_class(self._of).session
        return session.special(session.attribute(self._of, "__dict__"), name, args)

    def __getitem__(self, name: str) -> Any:
        if not isinstance(name, str):
            raise KeyError(name)
        own = OWN_ATTRIBUTES.__get__(self._of)
        if name[:2] != "__" or name[-2:] != "__" or (name not in own and name in self):
            return self._ask("__getitem__", name)
        if name in SPECIAL_METHODS and name not in self:
            raise KeyError(name)
        return own[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self._ask("__contains__", name))

    def __iter__(self) -> Iterator[str]:
        return iter([*self._ask("__iter__")])

    def __len__(self) -> int:
        length: int = self._ask("__len__")
        return length


OWN_ATTRIBUTES: Any = vars(type)["__dict__"]
"""Gives what a class itself has for its attributes."""
_RAISED_WITH = ("__traceback__", "__context__", "__cause__", "__suppress_context__", "args")
"""Attributes that Python sets as it raises."""


class RemoteObject:
    """An object of the candidate's. Its operators are those of its class, see `class_body`."""

    _agentrl: Reference

    def __getattr__(self, name: str) -> Any:
        if name == "_agentrl" or not may_be_asked(name):
            raise AttributeError(name)
        return reference(self).session.attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(self, BaseException) and name in _RAISED_WITH:
            object.__setattr__(self, name, value)
        else:
            reference(self).session.set_attribute(self, name, value)

    def __delattr__(self, name: str) -> None:
        reference(self).session.delete_attribute(self, name)

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        """The attributes of the original, as `vars` gives them."""
        return reference(self).session.attribute(self, "__dict__")

    def __dir__(self) -> Any:
        return reference(self).session.special(self, "__dir__", ())

    def __copy__(self) -> Any:
        return reference(self).session.copy(self, deep=False)

    def __deepcopy__(self, memo: Any) -> Any:
        return reference(self).session.copy(self, deep=True)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")

    def __eq__(self, other: object) -> Any:
        return reference(self).session.compare(self, "__eq__", other)

    def __bool__(self) -> bool:
        return reference(self).session.truth(self)

    def __hash__(self) -> int:
        return object.__hash__(self)


class _CopyOfAnIterator:
    """`copy.copy` asks the class. `itertools.tee` asks the iterator, which it would copy where it can."""

    def __get__(self, one: Any, kind: Any) -> Any:
        if one is not None:
            raise AttributeError("__copy__")
        return RemoteObject.__copy__


class TupleWithMore:
    """A candidate's named tuple whose class has methods: a tuple of the tests' own, but for these."""

    _agentrl_object: RemoteObject

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agentrl_object, name)


class Method:
    """What an object had by the name of a method: by that name, until the tests set it anew, and from then on by its number."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.process = 0


class RemoteFunction:  # noqa: D101
    # A function of the candidate's module, or of an object of its: a docstring would be shown in place of its own.

    def __init__(self, session: Session, owner: Any, name: str, method: Method | None = None) -> None:
        self._agentrl = Reference(session)
        self._agentrl_method = method or Method()
        self._agentrl_owner = owner
        self._agentrl_name = name
        self.__name__ = self.__qualname__ = name.rpartition(".")[2]
        self.__module__ = "solution"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        session = self._agentrl.session
        if self._agentrl_method.number is not None:
            return session.call_method(self._agentrl_method, args, kwargs)
        return session.call(self._agentrl_owner, self._agentrl_name, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_agentrl") or not may_be_asked(name):
            raise AttributeError(name)
        return self._agentrl.session.attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith(("_agentrl", "__")):
            return object.__setattr__(self, name, value)
        return self._agentrl.session.set_attribute(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._agentrl.session.delete_attribute(self, name)

    def __copy__(self, memo: Any = None) -> RemoteFunction:
        return self

    __deepcopy__ = __copy__

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        return self._agentrl.session.attribute(self, "__doc__")

    @property
    def __annotations__(self) -> Any:  # type: ignore[override]
        return self._agentrl.session.attribute(self, "__annotations__")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemoteFunction):
            return NotImplemented
        same = self._agentrl_owner is other._agentrl_owner and self._agentrl_name == other._agentrl_name
        return same and self._agentrl_method.number == other._agentrl_method.number

    def __hash__(self) -> int:
        return hash(self._agentrl_name)

    def __repr__(self) -> str:
        return f"<function {self.__name__} of the candidate>"


def class_body(where: Reference, special: list[str], *, unhashable: bool) -> dict[str, Any]:
    """Return what the stand-in for a class has: its reference, and those operators that the class has."""
    body: dict[str, Any] = {"_agentrl": where, "__module__": "solution"}
    body["__doc__"] = property(lambda self: where.session.attribute(self, "__doc__"))
    for name in SPECIAL_METHODS.intersection(special):
        if name in COMPARISONS:
            body[name] = _comparison(name)
        elif name == "__exit__":
            body[name] = _leave
        elif name == "__call__":
            body[name] = _call
        elif name == "__format__":
            body[name] = lambda self, spec: where.session.special(self, "__format__", (spec,))
        else:
            body[name] = _forward(name)
    if "__next__" in body:
        body["__copy__"] = _CopyOfAnIterator()
    if "__hash__" not in body:
        body["__hash__"] = None if unhashable else RemoteObject.__hash__
    return body


def _forward(name: str) -> Callable[..., Any]:
    def forward(self: Any, *args: Any) -> Any:
        return reference(self).session.combine(self, name, args)

    forward.__name__ = name
    return forward


def _comparison(name: str) -> Callable[..., Any]:
    def compare(self: Any, other: Any) -> Any:
        """Compare an object with something."""
        return reference(self).session.compare(self, name, other)

    compare.__name__ = name
    return compare


def _call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    return reference(self).session.call(self, None, args, kwargs)


def _leave(self: Any, kind: Any, error: Any, trace: Any) -> Any:
    """Leave a `with` block. A failed assertion of the test's is not the candidate's to suppress."""
    try:
        suppresses = reference(self).session.special(self, "__exit__", (kind, error, None))
    except Exception:
        if kind is not None and issubclass(kind, AssertionError):
            return False
        raise
    return suppresses and (kind is None or (goes_through_candidates(kind) and not issubclass(kind, AssertionError)))


def vars_of(kind: type) -> set[str]:
    """Return what a stand-in's class has from the candidate: its operators, and what is ours beside them."""
    return {name for base in kind.__mro__ if isinstance(base, RemoteClass) for name in OWN_ATTRIBUTES.__get__(base)}
