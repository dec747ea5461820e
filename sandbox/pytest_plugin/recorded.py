"""Environments that record their operations, for post-mortems of failed tests."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from sandbox import operations as op
from sandbox.docker.environment import DockerEnvironment
from sandbox.envelope import Envelope, Failure, Success
from sandbox.environment.base import Environment
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.errors import SandboxError
from sandbox.frozen import dataclass
from sandbox.local import LocalEnvironment

# What is recorded is bounded, however long a test runs and however much it prints.
ENTRIES = 200
OUTPUT_CHARS = 4000
SUBJECT_CHARS = 500
_SUBJECTS = ("subject", "command", "argv", "path", "source", "url", "log", "file", "port", "id", "pattern")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One operation and how it ended. ``at_seconds`` counts from the first use; ``output`` is cut in its middle.

    Variables and standard input of a command are not recorded: they may be secrets.
    """

    number: int
    at_seconds: float
    operation: str
    subject: str
    background: bool
    id: str | None
    exit_code: int | None
    signal: str | None
    oom_killed: bool
    running: bool
    error: str | None
    notices: tuple[str, ...]
    output: str
    output_bytes: int
    duration_ms: float

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as JSON-ready data."""
        return asdict(self)


class Record:
    """The last operations of one environment, in the order in which they ended. May be used by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: deque[Entry] = deque(maxlen=ENTRIES)
        self._started = time.monotonic()
        self.count = 0

    def since(self, number: int) -> tuple[Entry, ...]:
        """Return the recorded operations after the first ``number``."""
        with self._lock:
            return tuple(e for e in self._entries if e.number > number)

    def add(self, operation: str, args: Mapping[str, Any], envelope: Envelope[Any]) -> None:
        """Record how ``operation`` ended."""
        result = envelope.result
        ran = result if isinstance(result, op.RunResult) else None
        subject = next((args[name] for name in _SUBJECTS if args.get(name) is not None), "")
        with self._lock:
            self.count += 1
            entry = Entry(
                number=self.count,
                at_seconds=round(time.monotonic() - self._started - envelope.duration_ms / 1000, 3),
                operation=operation,
                subject=str(subject if isinstance(subject, str | int) else list(subject))[:SUBJECT_CHARS],
                background=bool(args.get("background")),
                id=ran.id if ran else None,
                exit_code=ran.exit_code if ran else None,
                signal=ran.signal if ran else None,
                oom_killed=bool(ran and ran.oom_killed),
                running=bool(ran and ran.running),
                error=None if envelope.ok else f"{envelope.code.value}: {envelope.error}",
                notices=tuple(f"{n.code}: {n.message} {n.hint}".rstrip() for n in envelope.notices),
                output=cut(ran.output) if ran else "",
                output_bytes=ran.output_bytes if ran else 0,
                duration_ms=round(envelope.duration_ms, 1),
            )
            self._entries.append(entry)


def cut(text: str, chars: int = OUTPUT_CHARS) -> str:
    """Return at most ``chars`` characters of the text, with a mark for what is left out of its middle."""
    if len(text) <= chars:
        return text
    return f"{text[: chars // 2]}\n[... {len(text) - chars} characters left out ...]\n{text[-(chars // 2) :]}"


class Recorded(Environment):
    """Mixin for an environment: ``record`` has its operations, except those within ``unrecorded()``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.record = Record()
        self._quiet = threading.local()
        super().__init__(*args, **options)

    @property
    @abstractmethod
    def started(self) -> bool:
        """Whether the environment was started and is not closed."""

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Do not record operations of this thread within the block."""
        before, self._quiet.on = getattr(self._quiet, "on", False), True
        try:
            yield
        finally:
            self._quiet.on = before

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """See ``ready.Watched``: a wait is recorded as one operation."""
        started = time.monotonic()
        answer: Envelope[Any] = Success(None)
        try:
            with self.unrecorded():
                yield
        except SandboxError as error:
            answer = Failure.of(error)
            raise
        finally:
            answer = replace(answer, duration_ms=(time.monotonic() - started) * 1000)
            self._record("wait until", {"subject": what}, answer)

    def execute(self, operation: str, args: Mapping[str, Any], **options: Any) -> Envelope[Any]:
        """See ``OperationMethods.execute``."""
        return self._record(operation, args, super().execute(operation, args, **options))

    def upload(self, data_or_path: Any, path: str, **options: Any) -> Envelope[op.UploadResult]:
        """See ``OperationMethods.upload``."""
        return self._record("upload", {"path": path}, super().upload(data_or_path, path, **options))

    def download(
        self, path: str, to: Any = None, *, without: Sequence[str] = (), overwrite: bool = False
    ) -> Envelope[op.DownloadResult]:
        """See ``OperationMethods.download``."""
        return self._record(
            "download", {"path": path}, super().download(path, to, without=without, overwrite=overwrite)
        )

    def _record(self, operation: str, args: Mapping[str, Any], envelope: Envelope[Any]) -> Envelope[Any]:
        if not getattr(self._quiet, "on", False):
            self.record.add(operation, args, envelope)
        return envelope


class RecordedSandboxed(Recorded, SandboxedEnvironment):
    """Mixin for an environment with a pipe to its sandbox."""

    @property
    def started(self) -> bool:
        """See ``Recorded``."""
        return self._transport is not None


class RecordedDocker(RecordedSandboxed, DockerEnvironment):
    """A DockerEnvironment that records its operations."""


class RecordedLocal(RecordedSandboxed, LocalEnvironment):
    """A LocalEnvironment that records its operations."""
