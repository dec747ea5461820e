"""Find invisible characters: a text that contains them says one thing to a person and another to a model.

They are control characters except tab and line feed, marks of writing direction, joiners and spaces of zero width, fillers,
tags (U+E0000 and on, which spell out ASCII), variation selectors except one after a character (as emoji have), and
surrogates. The list is Unicode's Default_Ignorable_Code_Point, plus the controls, separators and annotations that print
nothing.
"""

from __future__ import annotations

import re

_ALWAYS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_STEERING, _CONTROLS = re.compile("[\x00-\x08\x0b-\x1f]"), re.compile("[\x00-\x1f]")
_SHORT = {"\r": "\\r", "\n": "\\n", "\t": "\\t"}
_COLOURS = re.compile("\x1b\\[[0-9;:]*m")
# Without the invisible characters between them, a selector would follow the selector before.
_ANY = re.compile(f"[{_ALWAYS}]|(?<=[{_ALWAYS}\ufe0e\ufe0f])[\ufe0e\ufe0f]")


def code_point(char: str) -> str:
    """Return the code point of a character: "U+200B"."""
    return f"U+{ord(char):04X}"


def escape_invisible(text: str, form: str = "<{}>") -> str:
    """Return ``text`` for a person, with each invisible character replaced by its code point in ``form``."""
    return _ANY.sub(lambda match: form.format(code_point(match[0])), text)


def visible(text: str, *, one_line: bool = False) -> str:
    r"""Return any text for a terminal, with every control or invisible character escaped: ``\x1b``, ``\r``, ``<U+202E>``.

    Nothing is left out. Tabs and line feeds stay, unless ``one_line`` is set, as for names and paths.
    """
    return escape_invisible((_CONTROLS if one_line else _STEERING).sub(_escaped, text))


def visible_output(text: str) -> str:
    """Return a command's output for a terminal, as ``visible`` does, but without colours and with LF for CR LF."""
    return visible(_COLOURS.sub("", text.replace("\r\n", "\n")))


def _escaped(match: re.Match[str]) -> str:
    return _SHORT.get(match[0]) or f"\\x{ord(match[0]):02x}"


def without_invisible(text: str) -> str:
    """Return ``text`` for a model, without the characters that a person cannot see."""
    return _ANY.sub("", text)


def count_invisible(text: str) -> int:
    """Return the number of invisible characters."""
    return sum(1 for _ in _ANY.finditer(text))
