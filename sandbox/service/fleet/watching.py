"""What is told of operations to those who count and trace them: the fleet knows neither metrics nor traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from sandbox.envelope import Envelope, Failure
from sandbox.network.connections import Connection


@dataclass(slots=True)
class Ended:
    """An operation; ``code`` is that of a failure, else "". What it came to is known when it has ended."""

    sandbox: str
    tenant: str
    operation: str
    request: str
    code: str = ""
    seconds: float = 0.0
    result: Any = field(default=None, repr=False)

    def note(self, envelope: Envelope[Any]) -> None:
        """Note what it was answered."""
        self.code = str(envelope.code) if isinstance(envelope, Failure) else ""
        self.result = envelope.result


# Is entered before an operation, with what is known of it, and left after it.
Around = Callable[[Ended], AbstractContextManager[None]]


@contextmanager
def unwatched(operation: Ended) -> Iterator[None]:  # noqa: ARG001
    """Tell nobody."""
    yield


@dataclass(slots=True)
class Watching:
    """Who is told: ``around`` each operation, and of each ``connection`` of a sandbox as it ends, in a thread of its own."""

    around: Around = unwatched
    connection: Callable[[Connection], None] = lambda connection: None  # noqa: ARG005
