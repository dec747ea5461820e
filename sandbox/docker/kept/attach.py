"""Reaching the guest of a kept sandbox: for the first time from this process, or again after its stream was cut."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

import docker
import docker.errors

from sandbox.docker.container.postmortem import ENDED, container_state
from sandbox.docker.container.stream import AttachStream
from sandbox.docker.engine.client import connect, is_missing, is_podman, translated
from sandbox.docker.engine.retries import retry_engine
from sandbox.docker.images.runtime import GUEST_PACKAGE
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.reattach import NO_NONCE, OWNER_DEAD, TAKE_OVER, Call, answer_prefix, time_of_call
from sandbox.pipe.reattaching import ByteStream, NoAnswerError, call_guest
from sandbox.readers import attach, phrased

from . import owners
from .kept import Kept

log = logging.getLogger(__name__)

# How long a cut is hidden from callers: an engine restarts in a few seconds.
RECONNECT_SECONDS = 30.0
# A guest answers a call in milliseconds; one that has another host never does.
ANSWER_SECONDS = 5.0
# Its standard input may be closed for good; then it is called through the door.
STDIN_SECONDS = 1.5
ENGINE_SECONDS = 5
# The engine's word on a death comes about as fast as the end of the stream.
FATE_SECONDS = 0.3

PostMortem = Callable[[str, str], SandboxUnavailableError]


class EngineKeep:
    """Implements ``pipe.reattaching.Keep``. ``dead(seconds)`` returns whether the container is known to have died; ``held``
    whether its owner has paused it: then reconnecting waits until it is resumed.
    """

    def __init__(
        self,
        kept: Kept,
        container_id: str,
        post_mortem: PostMortem,
        dead: Callable[[float], bool],
        held: Callable[[], bool],
        changed: Callable[[AttachStream], None],
    ) -> None:
        self.seconds = kept.spec.keep_seconds
        self.answer_prefix = answer_prefix(kept.token)
        self._kept = kept
        self._id = container_id
        self._post_mortem = post_mortem
        self._dead = dead
        self._held = held
        self._changed = changed

    def resume(self, replaces: bytes, nonce: bytes, reason: str, detail: str) -> tuple[ByteStream, bytes]:
        """See ``pipe.reattaching.Keep``."""
        if self._dead(FATE_SECONDS):
            raise self._post_mortem(reason, detail)
        call = Call(nonce, replaces, owners.where(), time_of_call(), 0)

        def attempt() -> tuple[AttachStream, bytes]:
            while self._held():
                time.sleep(0.1)
            client = connect(ENGINE_SECONDS)
            if not self._runs(client):
                raise self._post_mortem(reason, detail)
            return reach(client, self._id, self._kept.token, call)

        policy = retry_engine(RECONNECT_SECONDS, _may_pass)
        try:
            stream, rest = policy(attempt)
        except SandboxUnavailableError:
            raise
        except (SandboxError, OSError) as error:
            raise self._unreachable(error) from error
        self._changed(stream)
        return stream, rest

    def _runs(self, client: docker.DockerClient) -> bool:
        try:
            with translated():
                return bool(client.api.inspect_container(self._id)["State"]["Running"])
        except SandboxError as error:
            if is_missing(error.__cause__):
                return False
            raise

    def _unreachable(self, error: Exception) -> SandboxUnavailableError:
        why = error.message if isinstance(error, SandboxError) else f"{str(error).capitalize()}."
        return SandboxUnavailableError(
            "pipe_broken",
            f"The connection to the sandbox was cut and did not come back within {RECONNECT_SECONDS:g} s: {why}",
            phrased(
                f"It may still run: {{back}} reaches it within {self.seconds:g} s.",
                back=attach(self._kept.spec.name or self._id[:12]),
            ),
        )


def for_guest(kept: Kept, stands_by_seconds: float | None = None) -> dict[str, Any]:
    """Return the fields of the greeting that only a kept sandbox gets.

    Until somebody acquires it, one that stands by waits only ``stands_by_seconds`` for a host.
    """
    fields = {"token": kept.token.hex(), "seconds": kept.spec.keep_seconds, "where": owners.where().hex()}
    return fields if stands_by_seconds is None else {**fields, "stands_by_seconds": stands_by_seconds}


def attach_stream(client: docker.DockerClient, container_id: str) -> AttachStream:
    """Open the stream to a container. Raises SandboxError."""
    with translated():
        attached: Any = client.api.attach_socket(
            container_id, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        )
    return AttachStream(attached)


def through_the_door(client: docker.DockerClient, container_id: str) -> AttachStream:
    """Open a stream to the guest by a relay that the engine starts in the container (see ``guest/loop``). Raises SandboxError."""
    with translated():
        entrypoint = client.api.inspect_container(container_id)["Config"]["Entrypoint"]
        argv = [*entrypoint[:-2], "-m", f"{GUEST_PACKAGE}.relay"]  # its interpreter, and another program
        made = client.api.exec_create(container_id, argv, stdin=True, user="0:0", workdir="/")
        return AttachStream(client.api.exec_start(made["Id"], socket=True))


def reach(client: docker.DockerClient, container_id: str, token: bytes, call: Call) -> tuple[AttachStream, bytes]:
    """Return a stream on which the guest has answered the call, and the bytes behind its answer. Raises SandboxError, OSError.

    By its standard input where that answers, else through the door. To take over it is the door at once: where the last owner is
    stopped, and does not read, the engine would hold up what the sandbox says for all that are attached. On Podman it is the door
    always: it closes the standard input with the first stream to it that ends, also for an owner that has another one.
    """
    if call.flags & TAKE_OVER or is_podman(client):
        return _called(through_the_door(client, container_id), token, call, ANSWER_SECONDS)
    try:
        return _called(attach_stream(client, container_id), token, call, STDIN_SECONDS)
    except NoAnswerError:
        return _called(through_the_door(client, container_id), token, call, ANSWER_SECONDS)


def _called(stream: AttachStream, token: bytes, call: Call, seconds: float) -> tuple[AttachStream, bytes]:
    try:
        return stream, call_guest(stream, token, call, time.monotonic() + seconds)
    except BaseException:
        stream.release()
        raise


def take(
    client: docker.DockerClient, kept: Kept, take_over: bool
) -> tuple[AttachStream, bytes, bytes, owners.Ownership]:
    """Become the owner: (stream, nonce, what came behind the guest's answer, ownership).

    Raises SandboxError ``sandbox_owned`` where somebody else is and ``take_over`` is false,
    SandboxUnavailableError, and as the engine does.
    """
    before = owners.owner_of(kept.ident)
    ownership = owners.claim(kept.ident)
    if ownership is None and not take_over:
        raise _owned(kept, str(before) if before is not None else "another process of this host")
    dead = OWNER_DEAD if before is not None and not before.alive else 0
    nonce = secrets.token_bytes(wire.NONCE_BYTES)
    call = Call(nonce, NO_NONCE, owners.where(), time_of_call(), TAKE_OVER if take_over else dead)
    try:
        with translated():
            if client.api.inspect_container(kept.container_id)["State"].get("Paused"):
                client.api.unpause(kept.container_id)
        stream, rest = reach(client, kept.container_id, kept.token, call)
    except BaseException as error:
        if ownership is not None:
            ownership.release()
        if isinstance(error, OSError) and not isinstance(error, NoAnswerError):
            raise _cut(kept, error) from error
        if not isinstance(error, NoAnswerError):
            raise
        if take_over:
            raise _silent(kept) from error
        raise _owned(kept, "an orchestrator of another host or user, which was heard of lately") from error
    return stream, nonce, rest, ownership or owners.seize(kept.ident)


def claimed_again(ident: str) -> owners.Ownership | None:
    """Become the owner of a sandbox that was left, to end it; None if it has ended and its last owner is removing what is left.

    Raises SandboxError ``sandbox_owned`` where somebody else uses it.
    """
    before = owners.owner_of(ident)
    ownership = owners.claim(ident)
    if ownership is None and container_state(ident) not in ENDED:
        raise SandboxError(
            ErrorCode.sandbox_owned,
            f"The sandbox {ident} is in use by {before or 'another process'}, which attached to it after it was closed here.",
            "Leave it to that one, or end it with `gamebox rm --force`.",
        )
    return ownership


def unknown_to_forks(kept: Kept) -> SandboxError:
    """Return the error of forking an attached sandbox whose options are not all known."""
    return SandboxError(
        ErrorCode.operation_not_supported,
        f"The sandbox was made with {' and '.join(kept.missing)}, which only its maker knows: forks would be without.",
        "Take its files along with checkpoint and save_checkpoint, make another sandbox with them, and load_checkpoint there.",
    )


def _may_pass(error: BaseException) -> bool:
    """Return whether trying again can help: the engine comes back, or the stream was cut once more."""
    if isinstance(error, SandboxUnavailableError):
        return False
    return isinstance(error, SandboxError | OSError)


def _owned(kept: Kept, owner: str) -> SandboxError:
    known = kept.called
    return SandboxError(
        ErrorCode.sandbox_owned,
        f"The sandbox {known} is in use by {owner}.",
        phrased("Wait until it is detached, or take it over: {how}.", how=attach(known, take_over=True)),
        retryable=True,
    )


def of_service(kept: Kept) -> SandboxError:
    """Return the error of using a sandbox of a service past that."""
    return SandboxError(
        ErrorCode.sandbox_owned,
        f"The sandbox {kept.called} belongs to a service (gamebox serve), which finds it again when it is started.",
        phrased("Use it over the service, or take it away from that: {how}.", how=attach(kept.called, take_over=True)),
    )


def _cut(kept: Kept, error: OSError) -> SandboxUnavailableError:
    return SandboxUnavailableError(
        "pipe_broken",
        f"The connection to the sandbox {kept.called} ended before it answered: {error}.",
        "See gamebox ls whether it is still there, and attach again; a command in it that ends all others has to end first.",
    )


def _silent(kept: Kept) -> SandboxUnavailableError:
    return SandboxUnavailableError(
        "no_answer",
        f"The sandbox {kept.called} did not answer within {ANSWER_SECONDS:g} s.",
        "Its guest is stuck, or an orchestrator that is stopped does not read what it says: end that one, or `gamebox rm --force`.",
    )
