"""Run the tasks of a batch in threads. Finished ones are skipped, and Ctrl-C leaves only complete results."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.interrupts import ignore_interrupts, interrupt_on_termination

from .earlier import earlier_results
from .results import Result, State, TaskFolder
from .tasks import BatchTask
from .trial import Parts, Trial
from .verifying import Verdict

# Beyond the seconds of the agent and of the verifier: starting, copying, closing.
SPARE_SECONDS = 300.0
ABORT_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What to run. ``retry`` runs tasks again whose verifier failed, ``redo_changed`` those whose content has changed."""

    tasks: Sequence[BatchTask]
    out: Path
    parts: Parts
    workers: int = 1
    retry: bool = False
    redo_changed: bool = False


@dataclass(slots=True)
class _Worker:
    trial: Trial
    thread: threading.Thread
    deadline: float | None
    result: list[Result] = field(default_factory=list)


def run_batch(batch: Batch, tell: Callable[[Result, bool], None]) -> tuple[list[Result], bool]:
    """Return the results in the order of the tasks, and whether all tasks have been handled.

    ``tell`` is called with each result as it comes, and with whether it is from an earlier batch. Raises SandboxError
    if another batch works in the folder, or if the results in it belong to other settings.
    """
    results: dict[str, Result] = {}
    waiting: list[BatchTask] = []

    def done(result: Result) -> None:
        results[result.id] = result
        tell(result, False)

    with _alone(batch.out), interrupt_on_termination():
        identities = {task.id: batch.parts.identities.get(task.id, {}) for task in batch.tasks}
        found = earlier_results(batch.out, batch.tasks, identities, redo_changed=batch.redo_changed)
        for task in batch.tasks:
            earlier = found.get(task.id)
            if earlier is None or (batch.retry and earlier.state is State.verifier_failed):
                waiting.append(task)
            else:
                results[task.id] = earlier
                tell(earlier, True)
        complete = _work(batch, waiting, done)
    return [results[task.id] for task in batch.tasks if task.id in results], complete


def _work(batch: Batch, waiting: list[BatchTask], done: Callable[[Result], None]) -> bool:
    active: list[_Worker] = []
    try:
        while waiting or active:
            while waiting and len(active) < batch.workers:
                active.append(_begun(batch, waiting.pop(0)))
            for worker in _ended(active):
                active.remove(worker)
                done(_settled(worker))
            time.sleep(0.05)
    except KeyboardInterrupt:
        with ignore_interrupts():
            _end(active)
        return False
    return True


def _begun(batch: Batch, task: BatchTask) -> _Worker:
    trial = Trial(task, batch.parts, TaskFolder(batch.out, task.id))
    bounds = [batch.parts.budget.max_seconds, task.seconds]
    seconds = min((b for b in bounds if b is not None), default=None)
    verifying = 0.0 if task.verifier is None else task.verifier.seconds
    deadline = None if seconds is None else time.monotonic() + seconds + verifying + SPARE_SECONDS
    worker = _Worker(trial, threading.Thread(name=f"task {task.id}"), deadline)

    def run() -> None:
        try:
            worker.result.append(trial.run())
        except BaseException:  # noqa: BLE001 - an abort; the one who asked for it knows
            return

    worker.thread = threading.Thread(target=run, name=f"task {task.id}", daemon=True)
    worker.thread.start()
    return worker


def _ended(active: Sequence[_Worker]) -> Iterator[_Worker]:
    now = time.monotonic()
    for worker in list(active):
        if not worker.thread.is_alive() or (worker.deadline is not None and now > worker.deadline):
            yield worker


def _settled(worker: _Worker) -> Result:
    """Return the result of a task that has ended. One that does not end is abandoned."""
    trial = worker.trial
    if worker.result and not trial.aborted.is_set():
        trial.folder.finish(worker.result[0])
        return worker.result[0]
    threading.Thread(target=trial.abort, daemon=True).start()
    words = f"It did not end in time ({trial.seconds:.0f} s): a call of the model or of the engine does not return."
    result = trial.result(Verdict(State.infra_error, error=words))
    trial.folder.finish(result)
    return result


def _end(active: Sequence[_Worker]) -> None:
    """End the running tasks. They leave no results, and the next batch runs them again."""
    aborting = [threading.Thread(target=worker.trial.abort, daemon=True) for worker in active]
    for thread in aborting:
        thread.start()
    deadline = time.monotonic() + ABORT_SECONDS
    for thread in [*aborting, *(worker.thread for worker in active)]:
        thread.join(max(0.0, deadline - time.monotonic()))
    for worker in active:
        worker.trial.folder.drop()


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keep other batches out of the folder within the block. Raises SandboxError if one works in it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = os.open(out / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"Results cannot be kept in {out}: {error.strerror}.",
            "Name another folder with -o.",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"Another batch is running in {out}.",
            "Wait for it, or name another folder with -o.",
        ) from None
    finally:
        os.close(lock)
