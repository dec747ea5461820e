"""Verify a task: when the agent has ended, the task's tests are copied into a sandbox, and what they write is the
reward.
"""

from __future__ import annotations

import json
import logging
import math
import posixpath
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import field, replace
from typing import Any

from agent.job.proof import prove
from agent.repo.scratch import temporary_folder
from sandbox.environment.base import Environment
from sandbox.environment.call_errors import answered
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

from .results import State
from .tampering import PATH, Fresh, remove_traps
from .tasks import BatchTask, Verifier

log = logging.getLogger(__name__)

TESTS, LOGS = "/tests", "/logs/verifier"
MOST_REWARD_BYTES = 64 << 10
# Nothing that the agent started lives on, and nothing that it left stands where the verifier writes or is read. The folder of LOGS
# goes, too: it may be a file now, or a link. Where it is a mount it stays, which is no fault once it is empty.
_CLEAN = (
    f"rm -rf -- {TESTS} {posixpath.dirname(LOGS)}; mkdir -p {TESTS} {LOGS} && chmod 755 {TESTS} {LOGS} && "
    f'[ ! -L {TESTS} ] && [ ! -L {posixpath.dirname(LOGS)} ] && [ -z "$(ls -A {TESTS})$(ls -A {LOGS})" ]'
)
# What the engine or the host fails with, and no command can bring about.
_NOT_THE_AGENTS = frozenset(
    {
        ErrorCode.cancelled,
        ErrorCode.sandbox_unavailable,
        ErrorCode.sandbox_closed,
        ErrorCode.sandbox_paused,
        ErrorCode.sandbox_owned,
        ErrorCode.sandbox_not_found,
        ErrorCode.engine_unavailable,
        ErrorCode.engine_permission_denied,
        ErrorCode.engine_timeout,
        ErrorCode.engine_error,
        ErrorCode.image_not_found,
        ErrorCode.start_failed,
        ErrorCode.host_disk_full,
        ErrorCode.host_descriptor_limit,
        ErrorCode.setup_failed,
        ErrorCode.invalid_limits,
        ErrorCode.invalid_configuration,
        ErrorCode.limit_not_enforced,
        ErrorCode.workspace_invalid,
    }
)
_PATH = ":".join(PATH)
# How often commands are ended until none is left, one that was starting another among them.
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """The finding of a verifier: ``rewards`` if ``state`` is ``value``, otherwise the reason in ``error``.

    ``output`` is what it printed; ``touched`` are files of the image that the agent changed and that the verdict may
    depend on.
    """

    state: State
    rewards: dict[str, float] = field(default_factory=dict)
    error: str = ""
    output: str = ""
    touched: tuple[str, ...] = ()


def verdict_of(task: BatchTask, sandbox: Environment, fresh: Fresh) -> Verdict:
    """Return what the task's checks or its verifier say about ``sandbox``. ``fresh`` creates another sandbox as it was
    at first.

    Before that, everything of the agent is ended, and traps for the verifier are removed or named. If the agent left a
    sandbox that allows no verdict, the reward is 0, because running the task again would be a second chance.
    """
    if task.verifier is None and not task.checks:
        return Verdict(State.not_verified)
    touched: tuple[str, ...] = ()
    try:
        with _place(task, sandbox, fresh) as (place, touched), _of_the_agent() if place is sandbox else nullcontext():
            found = _checked(task, place) if task.verifier is None else _verified(task, task.verifier, place)
            return replace(found, touched=touched)
    except _UnusableError as error:
        return Verdict(State.value, {"reward": 0.0}, error=str(error), touched=touched)
    except SandboxError as error:
        return Verdict(State.infra_error, error=str(error))


class _UnusableError(Exception):
    """The agent left its sandbox in a state that allows no verdict; the text says why."""


@contextmanager
def _of_the_agent() -> Iterator[None]:
    """Turn failures in the block, which works in the agent's sandbox, into _UnusableError, except those of the engine
    and the host.
    """
    try:
        yield
    except SandboxError as error:
        if error.code in _NOT_THE_AGENTS:
            raise
        raise _UnusableError(f"There is no verdict in the sandbox as the agent left it: {error}") from error


@contextmanager
def _place(task: BatchTask, sandbox: Environment, fresh: Fresh) -> Iterator[tuple[Environment, tuple[str, ...]]]:
    """Yield the sandbox to verify in: the agent's with its traps removed, or an untouched one with a copy of the task's folder."""
    with _of_the_agent():
        end_commands(sandbox)
    if not (task.fresh if task.verifier is None else task.verifier.fresh):
        with _of_the_agent():
            put_right, touched = remove_traps(sandbox, fresh)
        log.info("restored before the verdict on %s: %s", task.id, put_right)
        yield sandbox, touched
        return
    with temporary_folder("gamebox-verify-") as between, fresh() as untouched:
        folder = task.folder or "."
        copied = between / "files"
        with _of_the_agent():
            sandbox.download(folder, copied).unwrap()
        there = shlex.quote(folder)
        emptied = untouched.run(f"mkdir -p {there} && find {there} -mindepth 1 -delete", session=None).unwrap()
        if emptied.exit_code:
            raise SandboxError(
                ErrorCode.io_error,
                f"{folder} could not be emptied: {emptied.output[:500]}",
                "Look at the image of the task.",
            )
        untouched.upload(copied, folder).unwrap()
        yield untouched, ()


def end_commands(sandbox: Environment) -> None:
    """End every command and session, with all that they left running.

    Raises SandboxError if the sandbox is gone, or if something survives.
    """
    for _ in range(_ROUNDS):
        commands = sandbox.processes().unwrap().commands
        alive = [command for command in commands if command.running or command.process_count]
        for command in alive:
            sandbox.kill(command.id)
        for session in sorted({command.session for command in commands if command.session}):
            sandbox.end_session(session)
        if not alive:
            return
    left = [c.id for c in sandbox.processes().unwrap().commands if c.running or c.process_count]
    if left:
        raise SandboxError(
            ErrorCode.io_error,
            f"The commands {', '.join(left[:5])} of the agent could not be ended.",
            "Run the task again.",
        )


def _checked(task: BatchTask, place: Environment) -> Verdict:
    proofs = prove(place, task.checks)
    output = "".join(f"$ {proof.command}\n{proof.output}\n" for proof in proofs)
    return Verdict(State.value, {"reward": sum(proof.passed for proof in proofs) / len(proofs)}, output=output)


def _verified(task: BatchTask, verifier: Verifier, sandbox: Environment) -> Verdict:
    emptied = sandbox.run(_CLEAN, session=None, cwd="/", env={"PATH": _PATH}).unwrap()
    if emptied.exit_code:
        words = f"{TESTS} and {LOGS} could not be emptied: {emptied.output[:500].strip()}"
        raise SandboxError(ErrorCode.io_error, words, "Look at what is in their place.")
    sandbox.upload(verifier.folder, TESTS).unwrap()
    answer = answered(
        sandbox.run,
        f"bash {TESTS}/test.sh",
        session=None,
        cwd=task.folder,
        env={"PATH": _PATH, **task.env, **verifier.env},
        timeout_seconds=verifier.seconds,
    )
    output = answer.to_text()
    if not answer.ok and answer.code.value == "timeout":
        return Verdict(
            State.verifier_failed, error=f"The verifier took more than {verifier.seconds:g} s.", output=output
        )
    if not answer.ok and answer.code in _NOT_THE_AGENTS:
        return Verdict(State.infra_error, error=f"{answer.error} ({answer.code.value})", output=output)
    exit_code = answer.unwrap().exit_code
    try:
        return Verdict(State.value, _rewards(sandbox), output=output)
    except ValueError as error:
        return Verdict(State.verifier_failed, error=f"{error} Its exit code was {exit_code}.", output=output)


def _rewards(sandbox: Environment) -> dict[str, float]:
    """Read reward.json, or else reward.txt. Raises ValueError for an invalid reward."""
    for name in ("reward.json", "reward.txt"):
        read = sandbox.read(f"{LOGS}/{name}", max_bytes=MOST_REWARD_BYTES, offset=0)
        if not read.ok and read.code.value == "path_not_found":
            continue
        text = read.unwrap().content if read.ok else ""
        if not read.ok or read.result.truncated:
            raise ValueError(f"{name} cannot be read, or is too long.")
        return _parsed(name, text)
    raise ValueError("The verifier wrote neither reward.txt nor reward.json.")


def _parsed(name: str, text: str) -> dict[str, float]:
    try:
        value: Any = json.loads(text) if name.endswith(".json") else float(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{name} contains no reward: {text[:80]!r}.") from None
    found = value if isinstance(value, dict) and value else {"reward": value}
    for each in found.values():
        if not isinstance(each, int | float) or isinstance(each, bool) or not math.isfinite(each):
            raise ValueError(f"{name} contains {each!r:.80}, which is not a reward: rewards are finite numbers.")
    return {str(key)[:100]: float(each) for key, each in found.items()}
