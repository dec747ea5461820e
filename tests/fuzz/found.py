"""What a fuzz target reports: counts, and what it found."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Counts:
    """Frames that were taken or refused by the parser under test, conversations, and how calls and conversations ended."""

    conversations: int = 0
    frames: int = 0
    calls: int = 0
    endings: Counter[str] = field(default_factory=Counter)

    def shown(self) -> str:
        ends = " ".join(f"{name}={count}" for name, count in sorted(self.endings.items()))
        return f"frames={self.frames} conversations={self.conversations} calls={self.calls} {ends}"


class Found(Exception):  # noqa: N818
    """Something that must not happen, and the conversation it happened in."""

    def __init__(self, what: str, conversation: list[Any]) -> None:
        super().__init__(what)
        self.conversation = conversation

    def keep(self, target: str, seed: int, number: int) -> Path:
        """Write the conversation to a file for ``python -m tests.fuzz replay``; answers its path."""
        path = Path(tempfile.gettempdir()) / f"fuzz-{target}-{seed}-{number}.json"
        told = {"target": target, "seed": seed, "number": number, "what": str(self), "conversation": self.conversation}
        path.write_text(json.dumps(told), encoding="utf-8")
        return path


def open_descriptors(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def resident_bytes(pid: int | str = "self") -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096
