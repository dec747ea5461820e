"""What a handler is given: the sandbox it works in and the request it answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Place:
    """The sandbox as handlers see it: absolute paths as bytes, sizes in bytes.

    ``roots`` are the folders that file operations may touch, the workspace first; relative paths start at ``workspace``.
    ``interpreter`` is the argv prefix that starts this very Python with the guest and its libraries importable.
    """

    workspace: bytes
    home: bytes
    spill: bytes
    roots: tuple[bytes, ...]
    uid: int
    gid: int
    limits: dict[str, Any]
    interpreter: tuple[str, ...]
    environ: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finished:
    """How a helper process ended; ``exit_code`` is None where a signal ended it or it was timed out."""

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    truncated: bool
    timed_out: bool


class Call(Protocol):
    """One request under way. Handlers run in a thread that acts as the sandbox's user on files."""

    place: Place
    args: dict[str, Any]

    def body(self) -> Iterator[bytes]:
        """The bytes the caller streams to this request; raises Fault ``transfer_incomplete`` where they end too soon."""

    def send(self, chunk: bytes) -> None:
        """Stream bytes back, blocking while the caller does not take them; Fault ``cancelled`` when it gave up."""

    def run_helper(
        self,
        argv: list[str],
        *,
        timeout_seconds: float,
        max_output_bytes: int,
        cwd_fd: int | None = None,
        stdin: bytes | int = b"",
        env: dict[str, str] | None = None,
    ) -> Finished:
        """Run a program as the sandbox's user and collect its output; everything it started is killed at the end.

        ``stdin`` is bytes or a descriptor to read from. Raises Fault ``program_not_found`` and the like.
        """
