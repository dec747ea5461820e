"""dataclass: the standard library's, of which frozen classes are made in a quarter of the time.

That one compiles six methods for each frozen class, 0.5 ms, and ``gamebox run`` makes sixty of these classes before it does
anything. Only ``__init__`` has to be compiled to be fast; the other methods are the same few functions for all classes here, and go
by the names of the fields. What is asked for beyond that is left to the standard library (docs/decisions/0023).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """Make a class a dataclass, as ``dataclasses.dataclass`` does with the same options."""

        def make(cls: type) -> type:
            ours = options.get("frozen") and options.keys() <= {"frozen", "slots", "kw_only"}
            if not ours or any(map(dataclasses.is_dataclass, cls.__mro__)):
                return dataclasses.dataclass(**options)(cls)
            return _frozen(cls, {name: value for name, value in options.items() if name != "frozen"})

        return make if cls is None else make(cls)


class _Made:
    """Stands for a default that a function makes."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Made()


def _frozen(cls: type, options: dict[str, bool]) -> type:
    own = dict(vars(cls))
    for name in ("__setattr__", "__delattr__"):
        if name in own:
            raise TypeError(f"Cannot overwrite attribute {name} in class {cls.__name__}")
    if own.get("__hash__") is None and "__eq__" in own:
        own.pop("__hash__", None)  # nobody asked for it: Python sets it beside an __eq__
    if cls.__doc__ is None:  # else it becomes the signature, for which the standard library takes 0.1 ms
        cls.__doc__ = cls.__name__
    made: Any = dataclasses.dataclass(cls, init=False, repr=False, eq=False, **options)
    for name in ("init", "repr", "eq", "frozen"):  # for the classes that are derived from it
        setattr(made.__dataclass_params__, name, True)
    fields = dataclasses.fields(made)
    compared = _values(field.name for field in fields if field.compare)
    hashed = _values(field.name for field in fields if (field.compare if field.hash is None else field.hash))
    methods: dict[str, Callable[..., Any]] = {
        "__init__": _init(made, fields),
        "__repr__": _repr([field.name for field in fields if field.repr]),
        "__eq__": lambda self, other: (
            compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented
        ),
        "__hash__": lambda self: hash(hashed(self)),
        **_refusals(made, [field.name for field in fields]),
        **(_pickling([field.name for field in fields]) if options.get("slots") else {}),
    }
    for name, method in methods.items():
        if name not in own:
            method.__name__, method.__qualname__ = name, f"{made.__qualname__}.{name}"
            method.__module__ = made.__module__
            setattr(made, name, method)
    return made  # type: ignore[no-any-return]


def _init(made: type, fields: Sequence[dataclasses.Field[Any]]) -> Callable[..., None]:
    """Return the only method that is compiled for each class."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_MADE": _MADE}
    by_place: list[str] = []
    by_name: list[str] = []
    body: list[str] = []
    for number, field in enumerate(fields):
        value, default = field.name, ""
        if field.default_factory is not dataclasses.MISSING:
            known[f"_make{number}"], default = field.default_factory, "=_MADE"
            value = f"_make{number}() if {field.name} is _MADE else {field.name}" if field.init else f"_make{number}()"
        elif field.default is not dataclasses.MISSING:
            known[f"_default{number}"], default = field.default, f"=_default{number}"
            value = field.name if field.init else f"_default{number}"
        if field.init:
            (by_name if field.kw_only else by_place).append(field.name + default)
        if field.init or default:
            body.append(f" _set(self,{field.name!r},{value})")
    if hasattr(made, "__post_init__"):
        body.append(" self.__post_init__()")
    parameters = ",".join(["self", *by_place, *(["*", *by_name] if by_name else [])])
    exec("\n".join([f"def __init__({parameters}):", *(body or [" pass"])]), known)  # noqa: S102 - of the names of fields
    init: Callable[..., None] = known["__init__"]
    init.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    return init


def _values(names: Iterable[str]) -> Callable[[Any], Any]:
    """Return a function that returns the values of these fields of what it is given, as a tuple."""
    found = tuple(names)
    if not found:
        return lambda _: ()
    return attrgetter(*found, *found[:1])  # of one name alone it would return no tuple


def _repr(names: Sequence[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def represent(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({values})"

    return represent


def _refusals(made: type[object], names: Sequence[str]) -> dict[str, Callable[..., None]]:
    fixed = frozenset(names)

    def refuse_to_set(self: Any, name: str, value: object) -> None:
        if type(self) is made or name in fixed:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def refuse_to_delete(self: Any, name: str) -> None:
        if type(self) is made or name in fixed:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    return {"__setattr__": refuse_to_set, "__delattr__": refuse_to_delete}


def _pickling(names: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Return what pickle and copy need of a class with slots whose attributes cannot be set."""

    def state_of(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def take_state(self: Any, state: Sequence[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return {"__getstate__": state_of, "__setstate__": take_state}
