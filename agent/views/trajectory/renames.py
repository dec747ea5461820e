"""What has another name in a second run: ids of commands, ports that the system chooses, the folder on a host."""

from __future__ import annotations

import re
from typing import Any

from agent.record.volatile import mask_text, ports

# The files of a container are here; a path elsewhere may be one of the host (without isolation).
_WORKSPACE = "/workspace"
_PORT_IN_TEXT = re.compile(r"(?<!\d)\d{5}(?!\d)")


class Renames:
    """Which name of the first run is which one of the second.

    It learns from answers that are otherwise the same. A later answer with another name is a difference.
    """

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self._ports: dict[str, str] = {}
        self._root: tuple[str, str] | None = None

    def same_id(self, then: str, now: str) -> bool:
        """Return whether both are the id of the same command. Two ids that are new are taken for the same."""
        if then not in self.ids and now not in self.ids.values():
            self.ids[then] = now
        return self.ids.get(then) == now

    def same_folder(self, then: str, now: str) -> bool:
        """Return whether both are the same folder. The first two folders of a host are taken for those of the runs."""
        if then != now and self._root is None and not any(each.startswith(_WORKSPACE) for each in (then, now)):
            self._root = _roots(then, now)
        return then == now or self._move(then) == now

    def same_text(self, then: str, now: str, at_then: str = "", at_now: str = "", *, prefix: bool = False) -> bool:
        """Return whether two texts say the same; with ``prefix``, also if one is the beginning of the other."""
        if then == now:
            return True
        other = mask_text(now, at_now)
        for text in (then, self.rename(then), self._move(then)):
            one = mask_text(text, at_then)
            if one == other or (prefix and (one.startswith(other) or other.startswith(one))):
                for old, new in zip(ports(then), ports(now), strict=False):
                    self._ports.setdefault(old, new)
                return True
        return False

    def rename(self, text: str) -> str:
        """Return a text of the first run with the ids and folders of the second."""
        known = [ident for ident, new in self.ids.items() if ident != new]
        if known:
            pattern = r"\b(?:" + "|".join(map(re.escape, known)) + r")\b"
            text = re.sub(pattern, lambda m: self.ids[m[0]], text)
        return self._move(text)

    def rename_args(self, value: Any, key: str = "") -> Any:
        """Return arguments of the first run as they must be in the second."""
        if isinstance(value, str):
            if key == "id":
                return self.ids.get(value, value)
            return self._move(_PORT_IN_TEXT.sub(lambda m: self._ports.get(m[0], m[0]), value))
        if isinstance(value, dict):
            return {name: self.rename_args(each, name) for name, each in value.items()}
        return [self.rename_args(each, key) for each in value] if isinstance(value, list | tuple) else value

    def _move(self, text: str) -> str:
        return text if self._root is None else text.replace(*self._root)


def _roots(then: str, now: str) -> tuple[str, str]:
    """Return two paths without the folders at their ends that have the same names."""
    one, other = then.split("/"), now.split("/")
    while len(one) > 2 and len(other) > 2 and one[-1] == other[-1]:
        one.pop()
        other.pop()
    return "/".join(one), "/".join(other)
