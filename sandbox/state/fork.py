"""Start more sandboxes with the files of one."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, Self, TypeVar

from sandbox import operations as op
from sandbox.argument_types import check_types
from sandbox.envelope import Success
from sandbox.errors import ErrorCode, OperationError
from sandbox.guest.protocol.records import HOME, WORKSPACE
from sandbox.text.wording import value_text

from .checkpoint import Checkpoint
from .file_state import FileState
from .history import History
from .store import Store

MOST_FORKS = 64
# Starts at once: with more, an engine is not faster.
TOGETHER = 4


class Forkable(Protocol):
    """An environment that can be given the files of another one."""

    @property
    def state(self) -> FileState:
        """The state of its files."""

    def start(self) -> Self:
        """Start the sandbox. Raises SandboxError."""

    def close(self) -> None:
        """End the sandbox."""


Made = TypeVar("Made", bound=Forkable)


def fork(
    source: FileState, twin: Callable[[], Made], history: History, count: int, ident: str | None
) -> Success[op.ForkResult]:
    """Start ``count`` environments made by ``twin``, with the files of the checkpoint ``ident`` or the present ones.

    Raises SandboxError, after closing all of them.
    """
    check_types("fork", count=(count, int), checkpoint=(ident, str | None))
    if not 1 <= count <= MOST_FORKS:
        problem = f"fork makes 1 to {MOST_FORKS} sandboxes, not {value_text(count)}."
        raise OperationError(ErrorCode.invalid_arguments, problem, "Give another count.")
    began = time.monotonic()
    notices = source.root_notice()
    with history.lock:  # released while sandboxes start, which takes seconds: others use the history meanwhile
        if ident is None:
            checkpoint, scan, torn = history.checkpoint(None)
            notices += source.torn_notice(torn, scan.running)
        else:
            checkpoint = history.get(ident)
        notices += source.missing_notice(history, checkpoint)
        store = history.store.share()
        store.keep(checkpoint.digests.values())
        if ident is None:
            history.delete(checkpoint.result.id)
    environments: list[Made] = []
    try:
        environments = [twin() for _ in range(count)]
        with ThreadPoolExecutor(min(count, TOGETHER), thread_name_prefix="gamebox-fork") as pool:
            seconds = list(pool.map(lambda made: start_as_copy(made, store, checkpoint), environments))
    except BaseException:
        for made in environments:
            made.close()
        raise
    finally:
        store.drop(checkpoint.digests.values())
        store.release()
    result = op.ForkResult(
        id=checkpoint.result.id,
        count=count,
        environments=tuple(environments),
        start_seconds=tuple(seconds),
        seconds=round(time.monotonic() - began, 3),
    )
    return Success(result, notices=notices)


def start_as_copy(made: Forkable, store: Store, checkpoint: Checkpoint) -> float:
    """Start an environment with the files of another one's checkpoint. Returns the seconds it took. Raises SandboxError."""
    began = time.monotonic()
    made.start()
    history = made.state.history
    with history.lock:
        history.adopt(store, checkpoint)
        made.state.restore(history, checkpoint, history.scan((WORKSPACE, HOME)), elsewhere=True)
        history.start = history.scan().table
    return round(time.monotonic() - began, 3)
