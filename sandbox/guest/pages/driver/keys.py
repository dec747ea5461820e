"""Keys as they are typed into a page."""

from __future__ import annotations

from typing import Any

MODIFIERS = {"Alt": 1, "Control": 2, "Ctrl": 2, "Meta": 4, "Shift": 8}
# Name: code, number, and the text that it types.
NAMED: dict[str, tuple[str, int, str]] = {
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Escape": ("Escape", 27, ""),
    "Backspace": ("Backspace", 8, ""),
    "Delete": ("Delete", 46, ""),
    "Insert": ("Insert", 45, ""),
    "Home": ("Home", 36, ""),
    "End": ("End", 35, ""),
    "PageUp": ("PageUp", 33, ""),
    "PageDown": ("PageDown", 34, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "Space": ("Space", 32, " "),
    **{f"F{n}": (f"F{n}", 111 + n, "") for n in range(1, 13)},
}
_OTHER_NAMES = {"Return": "Enter", "Esc": "Escape", "Up": "ArrowUp", "Down": "ArrowDown", "Left": "ArrowLeft"}
_OTHER_NAMES |= {"Right": "ArrowRight", " ": "Space", "Del": "Delete"}
# What the browser itself does on these, which it is not told by the events of a key alone.
_COMMANDS = {"a": "selectAll", "c": "copy", "v": "paste", "x": "cut", "z": "undo", "y": "redo"}


def parse(name: str) -> list[dict[str, Any]]:
    """Return the events of a key or a combination such as Control+A. Raises ValueError for one that is not known."""
    *held, key = [part for part in name.split("+") if part] if name != "+" else ["+"]
    unknown = next((each for each in held if each.capitalize() not in MODIFIERS), None)
    if unknown is not None:
        raise ValueError(unknown)
    modifiers = sum({MODIFIERS[each.capitalize()] for each in held})
    named = _OTHER_NAMES.get(key, key)
    known = NAMED.get(named) or NAMED.get(named.capitalize())
    if known is not None:
        code, number, text = known
        key = " " if code == "Space" else code
    elif len(key) == 1:
        upper = key.upper()
        plain = upper.isascii() and upper.isalnum()
        code, number, text = (
            (f"Key{upper}" if upper.isalpha() else f"Digit{upper}") if plain else "",
            ord(upper) if plain else 0,
            key,
        )
    else:
        raise ValueError(key)
    event: dict[str, Any] = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers}
    down = {**event, "type": "keyDown" if text and modifiers in (0, 8) else "rawKeyDown"}
    if text and modifiers in (0, 8):
        down["text"] = text
    if modifiers == MODIFIERS["Control"] and key.lower() in _COMMANDS:
        down["commands"] = [_COMMANDS[key.lower()]]
    return [down, {**event, "type": "keyUp"}]
