"""What a candidate has in place of the tests' own objects, classes and iterators.

of an open class        its attributes, methods and operators are the tests', see `own_objects`
of a closed one         it can be kept and given back; who uses it needs what cannot pass
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple, Self

Use = Callable[[int, str, str, tuple[Any, ...], dict[str, Any]], Any]
"""Has the tests do something with the object of a number: what, with which name, with which arguments."""


class Origin(NamedTuple):
    """Where an object of the tests' is: who asks for it, and its number."""

    use: Use
    number: int

    def get(self, name: str) -> Any:
        """Return an attribute of the tests' object."""
        return self.use(self.number, "get", name, (), {})

    def special(self, name: str, args: tuple[Any, ...]) -> Any:
        """Use an operator of the tests' object."""
        return self.use(self.number, "special", name, args, {})


class NeedsTestObjectError(BaseException):
    """The candidate uses an attribute of an object of the tests' own class, which is not here."""

    def __init__(self, number: int, name: str) -> None:
        super().__init__(number, name)
        self.number = number
        self.name = name


COPIED = "__reduce_ex__"
"""By what Python copies an object that has no way of its own."""
DESCRIPTIVE = ("__name__", "__qualname__", "__annotations__", "__wrapped__", "__type_params__")
"""Attributes that a decorator asks a function for, and that an object may have or not."""


TEXT = "_agentrl_text"
"""The attribute of an exception of the tests' that has what its class says of it."""


class TestObject:
    """An object of the tests' own class: it is equal to itself, and can be kept and given back."""

    __test__ = False
    __slots__ = ("__weakref__",)


class ClosedObject(TestObject):
    """One that only the tests can use. What it does not have, it does not have here."""

    _number: int
    _names: list[str] | None
    """Of its attributes; None where it may have any."""

    def __getattr__(self, name: str) -> Any:
        kind = type(self)
        if name.startswith("__") or (kind._names is not None and name not in kind._names):
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        raise NeedsTestObjectError(kind._number, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise NeedsTestObjectError(type(self)._number, COPIED)


class TestIterator:
    """An iterator of the tests', which is asked for each item."""

    __test__ = False

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def __iter__(self) -> TestIterator:
        return self

    def __next__(self) -> Any:
        return self._call()


def _needed(number: int, name: str) -> Callable[..., Any]:
    def refuse(self: Any, *args: Any) -> Any:
        raise NeedsTestObjectError(number, name)

    return refuse


def closed_object(
    number: int, name: str, names: list[str] | None, special: list[str], call: Callable[..., Any] | None
) -> ClosedObject:
    """Return what stands for an object of a closed class, of which the attributes and some operators are known by name.

    It may be called where `call` is given.
    """
    operators = {operator: _needed(number, operator) for operator in special}
    if call is not None:
        operators["__call__"] = call
    return object.__new__(type(name, (ClosedObject,), {"_number": number, "_names": names, **operators}))


class OpenClass(type):
    """A class of the tests': calling it makes an object there."""

    _class_origin: Origin

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an object of the tests' class."""
        origin = cls._class_origin
        return origin.use(origin.number, "call", "", args, kwargs)

    def __getattr__(cls, name: str) -> Any:
        if name == "__members__":  # of an Enum
            return {member.name: member for member in cls}
        if name.startswith("_"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        return cls._class_origin.get(name)

    def __iter__(cls) -> Any:
        return iter(cls._class_origin.special("__iter__", ()))

    def __len__(cls) -> int:
        length: int = cls._class_origin.special("__len__", ())
        return length

    def __bool__(cls) -> bool:
        return True

    def __getitem__(cls, key: Any) -> Any:
        return cls._class_origin.special("__getitem__", (key,))


class OpenObject(TestObject, metaclass=OpenClass):
    """An object of the tests' own class."""

    __slots__ = ("_origin",)
    _origin: Origin

    def __getattr__(self, name: str) -> Any:
        if name in _NOT_ASKED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name == "__dict__":
            return AttributesOfObject(self, self._origin.get(name))
        if name.startswith("__") and name not in DESCRIPTIVE:
            raise NeedsTestObjectError(self._origin.number, name)
        return self._origin.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._origin.use(self._origin.number, "set", name, (value,), {})

    def __delattr__(self, name: str) -> None:
        self._origin.use(self._origin.number, "del", name, (), {})

    def __copy__(self) -> Any:
        return self._origin.use(self._origin.number, "copy", "", (), {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # What two objects of the tests' have in common, two copies would not.
        if any(isinstance(copied, OpenObject) for copied in memo.values()):
            raise NeedsTestObjectError(self._origin.number, COPIED)
        return self._origin.use(self._origin.number, "deepcopy", "", (), {})


class AttributesOfObject(dict[str, Any]):
    """The `__dict__` of an object of the tests' own class: what is set or deleted in it is an attribute there."""

    def __init__(self, owner: OpenObject, content: dict[str, Any]) -> None:
        super().__init__(content)
        self._owner = owner

    def __setitem__(self, name: str, value: Any) -> None:
        self._check(name)
        setattr(self._owner, name, value)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self._check(name)
        if name not in self:
            raise KeyError(name)
        delattr(self._owner, name)
        super().__delitem__(name)

    def _check(self, name: str) -> None:
        if type(name) is not str or name.startswith("_"):
            origin = self._owner._origin
            raise NeedsTestObjectError(origin.number, "__dict__")

    def __ior__(self, other: Any) -> Self:  # type: ignore[misc, override]
        self.update(other)
        return self

    update, pop, popitem, setdefault, clear = (
        getattr(MutableMapping, name) for name in ("update", "pop", "popitem", "setdefault", "clear")
    )


_NOT_ASKED = (
    "_origin",
    "__array_interface__",
    "__array_struct__",
    "__array__",
    "__array_ufunc__",
    "__array_function__",
)


def open_class(name: str, bases: tuple[type, ...], special: list[str], origin: Origin) -> OpenClass:
    """Return what stands for a class of the tests' own."""
    body = {operator: _asked(operator) for operator in special}
    made: OpenClass = OpenClass(name, bases, {"__slots__": (), "_class_origin": origin, **body})
    return made


def passing_for(kind: OpenClass, of: type) -> OpenClass:
    """Return a class whose objects `isinstance` takes for those of another, as a mock with a `spec` has it."""
    body = {"__slots__": (), "__class__": property(lambda self: of)}
    return OpenClass(kind.__name__, (kind,), body)


def _asked(operator: str) -> Callable[..., Any]:
    if operator == "__call__":
        return lambda self, *args, **kwargs: self._origin.use(self._origin.number, "call", "", args, kwargs)
    if operator == "__exit__":
        return lambda self, kind, error, trace: self._origin.special(operator, (kind, error, None))
    return lambda self, *args: self._origin.special(operator, args)


def open_exception(
    name: str, bases: tuple[type, ...], use: Use, number_of: Callable[[BaseException], int | None]
) -> type[BaseException]:
    """Return what stands for an exception class of the tests' own.

    What an exception of it has beside its arguments is asked for there, if it is one of the tests' (`number_of`), by its public names.
    """

    def get(self: BaseException, attribute: str) -> Any:
        number = number_of(self)
        if number is None or attribute.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {attribute!r}")
        return use(number, "get", attribute, (), {})

    def set_attribute(self: BaseException, attribute: str, value: Any) -> None:
        number = number_of(self)
        asked = number is not None and not attribute.startswith("_") and attribute != "args"
        if number is not None and asked:
            use(number, "set", attribute, (value,), {})
            if TEXT in vars(self):
                del vars(self)[TEXT]
                BaseException.__setattr__(self, TEXT, use(number, "special", "__str__", (), {}))
        if not asked or hasattr(type(self), attribute):
            BaseException.__setattr__(self, attribute, value)

    def text(self: BaseException) -> str:
        if (known := vars(self).get(TEXT)) is not None:
            return str(known)
        return str(super(made, self).__str__())

    made: type[BaseException] = type(name, bases, {"__getattr__": get, "__setattr__": set_attribute, "__str__": text})
    return made


def signature(parameters: list[Any]) -> Any:
    """Return the signature of a function or class of the tests'."""
    import inspect

    return inspect.Signature(
        [
            inspect.Parameter(name, inspect._ParameterKind(kind), default=None if has_default else inspect._empty)
            for name, kind, has_default in parameters
        ]
    )
