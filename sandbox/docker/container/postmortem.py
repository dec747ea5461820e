"""Why a sandbox ended, in words, from what its engine says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import docker.errors

from sandbox.docker.engine.client import connect, translated
from sandbox.docker.engine.events import EngineEvents, Fate
from sandbox.errors import SandboxError, SandboxUnavailableError
from sandbox.limits import Limits
from sandbox.messages.sandbox_ends import of_its_own_accord
from sandbox.readers import attach, phrased

# The end of the pipe is worded within 2 s: that long for the engine's own word, the rest for asking it.
FATE_SECONDS = 1.2
ENGINE_SECONDS = 1
AGAIN = "Start another sandbox; files in this one are lost."


@dataclass(frozen=True)
class Ended:
    """A sandbox whose pipe has ended. ``detail`` is the pipe's own word, ``said`` the last that the guest wrote to its stderr.

    ``keep_seconds`` is None for one that is not kept.
    """

    container_id: str
    limits: Limits
    detail: str
    said: str
    keep_seconds: float | None = None

    def explain(self, reason: str, events: EngineEvents | None) -> SandboxUnavailableError:
        """Why; within 2 s. A container that still runs, and that nobody can reach any more, is ended, unless it is kept."""
        if reason == "protocol_violation":
            message = f"The sandbox broke the protocol ({self.detail}) and was cut off."
            return SandboxUnavailableError(reason, message, AGAIN)
        if reason == "taken_over":
            return SandboxUnavailableError(
                reason,
                "The sandbox was taken over by another orchestrator, which uses it now.",
                phrased("Leave it to that one, or take it back with {back}.", back=attach(self.container_id[:12], take_over=True)),
            )
        fate = events.fate(self.container_id, FATE_SECONDS) if events is not None else None
        if fate is not None and fate.died:
            return self._died(fate)
        state = state_of(self.container_id)
        if state == "gone":
            message = "The sandbox ended; the engine's word on why was missed, because its event stream had been cut."
            return SandboxUnavailableError("removed", message, AGAIN)
        if state == "unknown":
            return SandboxUnavailableError(
                "engine_gone",
                f"The Docker Engine is gone. {self.detail}".strip(),
                "Start the engine again, then another sandbox; files in this one are lost.",
            )
        if self.keep_seconds is not None:
            message = f"The connection to the sandbox was cut. {self.detail}".strip()
            back = phrased("It still runs: {back} reaches it.", back=attach(self.container_id[:12]))
            return SandboxUnavailableError("pipe_broken", message, back)
        ended = "It was ended with everything in it." if end(self.container_id) else ""
        lost = "the Docker Engine was restarted" if events is None or not events.alive else "its connection was cut"
        message = f"The sandbox cannot be reached any more: {lost}. {ended} {self.detail}"
        return SandboxUnavailableError("pipe_broken", " ".join(message.split()), AGAIN)

    def _died(self, fate: Fate) -> SandboxUnavailableError:
        if fate.oom_at is not None and fate.exit_code == 137 and not fate.killed_by_engine:
            message = f"The sandbox ran out of memory (limit {self.limits.memory_bytes} bytes) and was killed."
            return SandboxUnavailableError("out_of_memory", message, "Start another one with more memory_bytes.")
        if fate.killed_by_engine or fate.exit_code == 137:
            return SandboxUnavailableError("killed", "The sandbox's container was killed from outside.", AGAIN)
        if fate.exit_code == 0:  # which it does at the end of its input
            message = f"The connection to the sandbox was cut, and so it ended. {self.detail}".strip()
            return SandboxUnavailableError("pipe_broken", message, AGAIN)
        if its_own := of_its_own_accord(fate.exit_code, self.limits, self.keep_seconds):
            return its_own
        last = self.said.strip().splitlines()[-1:]
        ended = f"The guest ended by itself with exit code {fate.exit_code}{': ' + last[0][:300] if last else ''}."
        return SandboxUnavailableError("exited", ended, AGAIN)


def unanswered(
    container_id: str, error: SandboxUnavailableError, on_kill: Callable[[], None]
) -> SandboxUnavailableError:
    """End the container of a guest that is silent past a command's deadline, and return what to report.

    Nothing may be left running then. ``on_kill`` is called before the engine is asked to kill it, so that the end of the pipe is
    not taken for somebody else's doing.
    """
    state = state_of(container_id)
    if state == "paused":
        return SandboxUnavailableError(
            "no_answer",
            "The sandbox is paused: nothing in it runs until it is unpaused.",
            "Unpause it, or start another.",
        )
    hint = AGAIN
    if state in ("gone", "exited", "dead", "removing"):
        ended = "It has ended meanwhile."
    elif state == "unknown":
        ended = "The Docker Engine does not answer either."
        hint = "See whether `docker info` answers. Commands still end by themselves when their time is up."
    else:
        on_kill()
        if end(container_id):
            ended = "It was ended with everything in it."
        else:
            ended = f"The Docker Engine was asked to end it, and has not answered within {ENGINE_SECONDS} second."
            hint = "See whether `docker info` answers, then start another sandbox; files in this one are lost."
    return SandboxUnavailableError("no_answer", f"{error.message} {ended}", hint)


def state_of(container_id: str) -> str:
    """The container's state as the engine says it ("running", "paused", …), "gone", or "unknown"; within 2 s."""
    try:
        with translated():
            return str(connect(ENGINE_SECONDS).api.inspect_container(container_id)["State"]["Status"])
    except SandboxError as error:
        return "gone" if isinstance(error.__cause__, docker.errors.NotFound) else "unknown"


def end(container_id: str) -> bool:
    """Kill the container, whatever it does; whether the engine says within a second that nothing of it runs any more."""
    try:
        with translated():
            connect(ENGINE_SECONDS).api.kill(container_id)
    except SandboxError as error:
        cause = error.__cause__  # 404: it is gone; 409: it does not run
        return isinstance(cause, docker.errors.APIError) and cause.status_code in (404, 409)
    return True
