"""What a command waits for, as the guest found it in /proc."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sandbox.text.wording import one_line

Kind = Literal["stdin", "lock", "socket", "child", "cpu", "sleep", "disk", "other"]
_CLAUSES: dict[Kind, str] = {
    "stdin": "waits for input on stdin",
    "lock": "waits for a lock",
    "socket": "waits on a socket",
    "child": "waits for a child process",
    "cpu": "is computing",
    "sleep": "sleeps",
    "disk": "waits for the disk",
    "other": "waits",
}


class WaitingFor(BaseModel):
    """What a command waits for: the process ``pid`` explains it, and ``detail`` names the file, the address or the system call.

    Read from /proc at one moment. ``cpu`` is a process that computes, ``lock`` a file lock or a wait for another thread.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Kind
    pid: int = Field(ge=0)
    program: str = Field("", max_length=64)
    detail: str = Field("", max_length=16384)

    def to_text(self) -> str:
        """Return a clause: "waits for input on stdin (python3, process 12: the terminal)"."""
        detail = f": {one_line(self.detail)}" if self.detail else ""
        return f"{_CLAUSES[self.kind]} ({one_line(self.program) or 'a program'}, process {self.pid}{detail})"
