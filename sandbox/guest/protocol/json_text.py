"""JSON as messages carry it, by the interpreter's own scanner and encoder.

``json`` makes a new encoder for each call with options, and imports ``re``, ``enum`` and ``functools``, which a guest at rest does
without (see ``guest/builtin``).
"""

from __future__ import annotations

from _json import encode_basestring, make_encoder, make_scanner, scanstring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


def _refuse_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_value(value: Any) -> NoReturn:
    raise TypeError(f"{type(value).__name__} is not a JSON value")


class _Options:
    """What the scanner takes its options from."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, staticmethod(_refuse_number)
    parse_string, memo = staticmethod(scanstring), None


_scan: Any = make_scanner(_Options())  # type: ignore[arg-type]  # made for a JSONDecoder


def _make_encoder(any_number: bool) -> Callable[[Any, int], tuple[str, ...]]:
    return make_encoder(None, _refuse_value, encode_basestring, None, ":", ",", False, False, any_number)


_STRICT, _LAX = _make_encoder(False), _make_encoder(True)


def decode(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError, RecursionError; NaN and infinity are no JSON numbers."""
    text = text.strip(" \t\n\r")
    try:
        value, end = _scan(text, 0)
    except StopIteration as stop:
        raise ValueError(f"no JSON value at {stop.value}") from None
    if end != len(text):
        raise ValueError(f"more than one JSON value, at {end}")
    return value


def encode(value: Any, *, any_number: bool = False) -> str:
    """Return the JSON text of a value, without spaces. Raises ValueError for NaN and infinity, unless with ``any_number``."""
    return "".join((_LAX if any_number else _STRICT)(value, 0))
