"""What is called otherwise in a second run: ids of commands, ports that the system gives out, the folder of a host."""

from __future__ import annotations

import re
from typing import Any

from .passing import masked, ports

# Where a container has its files; a path elsewhere may be one of the host (without isolation).
_WORKSPACE = "/workspace"
_PORT_IN_TEXT = re.compile(r"(?<!\d)\d{5}(?!\d)")


class Names:
    """What of the first run is what of the second. It learns from answers that are the same otherwise; what it has learned holds:
    a later answer that says another name is a difference.
    """

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self._ports: dict[str, str] = {}
        self._root: tuple[str, str] | None = None

    def same_id(self, then: str, now: str) -> bool:
        """Whether both are the id of the same; of ids not seen before it is learned."""
        if then not in self.ids and now not in self.ids.values():
            self.ids[then] = now
        return self.ids.get(then) == now

    def same_folder(self, then: str, now: str) -> bool:
        """Whether both are the same folder. The first two that are of a host are taken for it: they are where the runs were."""
        if then != now and self._root is None and not any(each.startswith(_WORKSPACE) for each in (then, now)):
            self._root = _differing(then, now)
        return then == now or self._moved(then) == now

    def same_text(self, then: str, now: str, at_then: str = "", at_now: str = "", *, begun: bool = False) -> bool:
        """Whether two texts say the same; with ``begun`` also where one is the beginning of the other."""
        if then == now:
            return True
        other = masked(now, at_now)
        for told in (then, self.renamed(then), self._moved(then)):
            one = masked(told, at_then)
            if one == other or (begun and (one.startswith(other) or other.startswith(one))):
                for old, new in zip(ports(then), ports(now), strict=False):
                    self._ports.setdefault(old, new)
                return True
        return False

    def renamed(self, text: str) -> str:
        """A text of the first run with the ids and folders of the second."""
        known = [ident for ident, new in self.ids.items() if ident != new]
        if known:
            pattern = r"\b(?:" + "|".join(map(re.escape, known)) + r")\b"
            text = re.sub(pattern, lambda m: self.ids[m[0]], text)
        return self._moved(text)

    def arguments(self, value: Any, key: str = "") -> Any:
        """Arguments of the first run as they have to be in the second."""
        if isinstance(value, str):
            if key == "id":
                return self.ids.get(value, value)
            return self._moved(_PORT_IN_TEXT.sub(lambda m: self._ports.get(m[0], m[0]), value))
        if isinstance(value, dict):
            return {name: self.arguments(each, name) for name, each in value.items()}
        return [self.arguments(each, key) for each in value] if isinstance(value, list | tuple) else value

    def _moved(self, text: str) -> str:
        return text if self._root is None else text.replace(*self._root)


def _differing(then: str, now: str) -> tuple[str, str]:
    """Two paths without the folders below that are called the same."""
    one, other = then.split("/"), now.split("/")
    while len(one) > 2 and len(other) > 2 and one[-1] == other[-1]:
        one.pop()
        other.pop()
    return "/".join(one), "/".join(other)
