"""Characters that nobody sees: a text that holds them says one thing to a person and another to a model.

Control characters but tab and line feed, marks of writing direction, joiners and spaces of no width, fillers, tags (U+E0000 and on,
which spell out ASCII), variation selectors but one behind a character (an emoji has one), halves of characters. The list is that of
Unicode's Default_Ignorable_Code_Point, with the controls, separators and annotations that print nothing, too.
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
# A selector behind what is taken out would stand behind the selector before that.
_ANY = re.compile(f"[{_ALWAYS}]|(?<=[{_ALWAYS}\ufe0e\ufe0f])[\ufe0e\ufe0f]")


def number_of(char: str) -> str:
    """A character by its number: "U+200B"."""
    return f"U+{ord(char):04X}"


def made_visible(text: str, form: str = "<{}>") -> str:
    """``text`` for a person: each such character as its number in ``form``, so that what is seen is all there is."""
    return _ANY.sub(lambda match: form.format(number_of(match[0])), text)


def visible(text: str, *, one_line: bool = False) -> str:
    r"""Return a command, an argument, a name or any other text with every character that steers a terminal shown.

    Nothing is left out, so that what is seen is all there is: ``\x1b``, ``\r``, ``<U+202E>``. Tabs and line feeds stay, unless the
    text is a name or a path, which has ``one_line``.
    """
    return made_visible((_CONTROLS if one_line else _STEERING).sub(_escaped, text))


def visible_output(text: str) -> str:
    """Return what a command has written in the same way, but for line ends of DOS, and for sequences that set colours: those are
    left out, and they hold no text.
    """
    return visible(_COLOURS.sub("", text.replace("\r\n", "\n")))


def _escaped(match: re.Match[str]) -> str:
    return _SHORT.get(match[0]) or f"\\x{ord(match[0]):02x}"


def without_invisible(text: str) -> str:
    """``text`` for a model: as a person sees it, without what they cannot see."""
    return _ANY.sub("", text)


def count_invisible(text: str) -> int:
    """How many there are."""
    return sum(1 for _ in _ANY.finditer(text))
