"""An agent by a script: it sees the outline, finds elements in it by role and name, and carries out the moves of a goal."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from sandbox import DockerEnvironment

MOST_TURNS = 20


class Solver:
    """Solves one task in the page that is open; ``outline`` is all that it knows of it."""

    def __init__(self, env: DockerEnvironment, outline: str) -> None:
        self._env = env
        self.outline = outline
        self.title = ""

    def solve(self, goal: Sequence[tuple[str, ...]]) -> str:
        """Carry out a goal. Returns the title of the page in the end."""
        for kind, *rest in goal:
            if kind == "until":
                self._turn_until(*rest)
            elif kind == "dialog":
                self._act({"action": "dialog", "value": rest[0]})
            elif kind == "wait":
                self._act({"action": "wait", "value": rest[0]})
            elif kind == "press":
                target = {"target": self._reference(rest[1], rest[2])} if len(rest) > 1 else {}
                self._act({"action": "press", "value": rest[0], **target})
            else:
                role, name, *value = rest
                self._act(
                    {"action": kind, "target": self._reference(role, name), **({"value": value[0]} if value else {})}
                )
        return self.title

    def _turn_until(self, role: str, name: str, button_role: str, button: str) -> None:
        for _ in range(MOST_TURNS):
            if self._find(role, name) is not None:
                return
            self._act({"action": "click", "target": self._reference(button_role, button)})
        raise AssertionError(f"there is no {role} {name!r} in:\n{self.outline}")

    def _act(self, step: dict[str, Any]) -> None:
        done = self._env.browse_interact(step).unwrap()
        self.outline, self.title = done.outline, done.title

    def _find(self, role: str, name: str) -> str | None:
        start = f"- {role} {json.dumps(name, ensure_ascii=False)}"
        return next(
            (
                line
                for each in self.outline.split("\n")
                if (line := each.strip()) == start or line.startswith(start + " ")
            ),
            None,
        )

    def _reference(self, role: str, name: str) -> str:
        line = self._find(role, name)
        found = re.search(r"\[ref=(e\d+)\]", line or "")
        assert found is not None, f"there is no {role} {name!r} in:\n{self.outline}"
        return found[1]
