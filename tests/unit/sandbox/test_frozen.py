"""Frozen classes of this project behave as those of the standard library do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from sandbox import frozen

T = TypeVar("T")

# ``frozen`` for this project's, ``dataclasses`` for the standard library's: what follows holds for both unless it says otherwise.
MAKERS: tuple[Any, ...] = (frozen, dataclasses)
OPTIONS: tuple[dict[str, bool], ...] = ({}, {"slots": True}, {"kw_only": True}, {"slots": True, "kw_only": True})


def _plain(maker: Any, **options: bool) -> Any:
    @maker.dataclass(frozen=True, **options)
    class Plain:
        """Has all kinds of fields."""

        kind: ClassVar[str] = "plain"
        size: int
        name: str = "a"
        parts: list[int] = field(default_factory=list)
        secret: str = field(default="s", repr=False)
        note: str = field(default="", compare=False)
        key: int = field(default=0, hash=False)
        fixed: int = field(default=7, init=False)
        made: tuple[int, ...] = field(default_factory=tuple, init=False)
        last: int = field(default=1, kw_only=True)

    return Plain


@pytest.fixture(params=OPTIONS, ids=str)
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    return _plain(frozen, **request.param), _plain(dataclasses, **request.param)


def test_a_value_looks_like_one_of_the_standard_library(pair: tuple[Any, Any]) -> None:
    ours, theirs = (made(size=1, note="n", parts=[2]) for made in pair)

    assert repr(ours) == repr(theirs)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert [each.name for each in dataclasses.fields(ours)] == [each.name for each in dataclasses.fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__doc__ == theirs.__doc__ == "Has all kinds of fields."


def test_it_is_made_with_the_same_arguments(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair

    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__init__.__annotations__ == theirs.__init__.__annotations__
    for arguments in ((), (1, 2, 3, 4, 5, 6, 7, 8)):
        with pytest.raises(TypeError) as of_ours:
            ours(*arguments)
        with pytest.raises(TypeError) as of_theirs:
            theirs(*arguments)
        assert str(of_ours.value) == str(of_theirs.value)
    assert ours(size=1).parts is not ours(size=1).parts


def test_it_compares_and_hashes_the_same_fields(pair: tuple[Any, Any]) -> None:
    for made in pair:
        first = made(size=1, parts=())
        assert first == made(size=1, parts=(), note="another")
        assert first != made(size=1, parts=(), key=1)
        assert first != made(size=2, parts=())
        assert first != (1, "a", (), "s", 0)
        assert hash(first) == hash(made(size=1, parts=(), note="another", key=5))
        assert hash(first) != hash(made(size=2, parts=()))
        with pytest.raises(TypeError, match="unhashable"):
            hash(made(size=1))  # it holds a list
    assert pair[0](size=1) != pair[1](size=1)


def test_it_cannot_be_changed(pair: tuple[Any, Any]) -> None:
    value = pair[0](size=1)  # with slots and an unknown name, the standard library of Python 3.11 raises something else

    for name in ("size", "unknown"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(value, name, 2)
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot delete field '{name}'"):
            delattr(value, name)
    assert dataclasses.replace(value, size=3).size == 3
    assert value.size == 1


@frozen.dataclass(frozen=True, slots=True)
class WithSlots:
    size: int
    parts: tuple[int, ...] = ()


@frozen.dataclass(frozen=True)
class WithoutSlots:
    size: int
    parts: tuple[int, ...] = ()


@pytest.mark.parametrize("made", [WithSlots, WithoutSlots])
@pytest.mark.parametrize("again", [lambda value: pickle.loads(pickle.dumps(value)), copy.copy, copy.deepcopy])
def test_it_can_be_copied_and_pickled(made: type[WithSlots], again: Callable[[Any], Any]) -> None:
    value = made(1, (2, 3))

    assert again(value) == value


@pytest.mark.parametrize("maker", MAKERS)
def test_methods_of_the_class_are_kept(maker: Any) -> None:
    class Own:
        size: int

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("negative")

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

    made: Any = maker.dataclass(frozen=True, slots=True)(Own)

    assert repr(made(1)) == "own"
    assert made(1) == made(2)
    assert hash(made(1)) == hash(made(1))
    assert hash(made(1)) != hash(made(2))
    with pytest.raises(ValueError, match="negative"):
        made(-1)


@pytest.mark.parametrize("maker", MAKERS)
def test_a_hash_of_the_class_is_kept(maker: Any) -> None:
    class Own:
        parts: list[int]

        def __hash__(self) -> int:
            return 42

    made: Any = maker.dataclass(frozen=True)(Own)

    assert hash(made([])) == 42
    assert made([1]) == made([1])


@pytest.mark.parametrize("again", MAKERS)
def test_a_class_can_be_derived_from_it(again: Any) -> None:
    @frozen.dataclass(frozen=True, slots=True)
    class Base:
        size: int = 1

    @again.dataclass(frozen=True)
    class Derived(Base):
        name: str = "a"

    class Plain(Base):
        other: int

    name = "size"
    assert repr(Derived(2)).endswith("Derived(size=2, name='a')")
    assert Derived(2) == Derived(2) != Base(2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(Derived(2), name, 3)
    free = Plain(2)
    free.other = 3
    del free.other
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(free, name, 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(free, name)
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
        again.dataclass(type("Thawed", (Base,), {}))


@pytest.mark.parametrize("maker", MAKERS)
def test_it_may_be_generic(maker: Any) -> None:
    class Box(Generic[T]):
        held: T

    made: Any = maker.dataclass(frozen=True)(Box)

    assert made[int](1) == made(1)


@pytest.mark.parametrize("maker", MAKERS)
def test_one_that_holds_itself_can_be_shown(maker: Any) -> None:
    value = _plain(maker)(size=1)
    value.parts.append(value)

    assert "parts=[...]" in repr(value)


@pytest.mark.parametrize("maker", MAKERS)
def test_what_cannot_be_made_is_refused(maker: Any) -> None:
    with pytest.raises(TypeError, match="Cannot overwrite attribute __setattr__ in class Own"):

        @maker.dataclass(frozen=True)
        class Own:
            def __setattr__(self, name: str, value: object) -> None: ...

    with pytest.raises((TypeError, SyntaxError), match="default"):
        maker.dataclass(frozen=True)(type("Wrong", (), {"__annotations__": {"a": int, "b": int}, "a": 1, "__module__": __name__}))
    with pytest.raises(ValueError, match="mutable default"):
        maker.dataclass(frozen=True)(type("Wrong", (), {"__annotations__": {"a": list}, "a": [], "__module__": __name__}))


@pytest.mark.parametrize("maker", MAKERS)
def test_other_options_are_those_of_the_standard_library(maker: Any) -> None:
    class Free:
        size: int

    class Ordered:
        size: int

    free_made, ordered_made = maker.dataclass(Free), maker.dataclass(frozen=True, order=True)(Ordered)

    free = free_made(1)
    free.size = 2
    assert free == free_made(2)
    assert ordered_made(1) < ordered_made(2)


def test_a_class_without_a_docstring_has_its_name_for_one() -> None:
    assert WithSlots.__doc__ == "WithSlots"
