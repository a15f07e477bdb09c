"""What stand-ins ask of the candidate: the seam between them and `remote`. Nothing of it is there when programs run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Protocol

if TYPE_CHECKING:
    from agentrl.sandboxes.inside.stand_ins import Method


class Session(Protocol):
    """What stand-ins ask of the candidate."""

    def attribute(self, owner: Any, name: str) -> Any:
        """Return an attribute of an object, or a name of the module."""
        ...

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of an object, or a name of the module."""
        ...

    def delete_attribute(self, owner: Any, name: str) -> None:
        """Delete an attribute of an object, or a name of the module."""
        ...

    def call(self, owner: Any, name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of the module, a method of an object, or with no name the object itself."""
        ...

    def call_method(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call what the tests have had by the name of a method."""
        ...

    def call_now(self, owner: Any, name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call at once: the run neither counts this call nor replaces what it makes."""
        ...

    def special(self, owner: Any, name: str, args: tuple[Any, ...]) -> Any:
        """Use an operator of an object."""
        ...

    def compare(self, owner: Any, name: str, other: Any) -> Any:
        """Compare an object with something."""
        ...

    def combine(self, owner: Any, name: str, args: tuple[Any, ...]) -> Any:
        """Use an operator of two operands or more."""
        ...

    def truth(self, owner: Any) -> bool:
        """Return whether an object is true."""
        ...

    def copy(self, owner: Any, *, deep: bool) -> Any:
        """Return a copy of an object."""
        ...

    def refuse(self, need: str) -> NoReturn:
        """End the test, which cannot be graded, and say what it would need."""
        ...
