"""Find out from the engine why a sandbox ended, and word it."""

from __future__ import annotations

from collections.abc import Callable

import docker.errors

from sandbox.docker.engine.client import connect, is_missing, is_podman, translated
from sandbox.docker.engine.events import EngineEvents, Fate
from sandbox.errors import SandboxError, SandboxUnavailableError
from sandbox.frozen import dataclass
from sandbox.limits import Limits
from sandbox.messages.sandbox_ends import ended_by_itself
from sandbox.readers import attach, phrased

# The end of the pipe must be explained within 2 s: this long for the engine's event, the rest for asking the engine.
FATE_SECONDS = 1.2
ENGINE_SECONDS = 1
START_ANOTHER = "Start another sandbox; files in this one are lost."
# The states of a container in which nothing runs any more, as ``container_state`` returns them.
ENDED = ("gone", "exited", "dead", "removing")


@dataclass(frozen=True)
class EndedSandbox:
    """A sandbox whose pipe has ended. ``detail`` is the pipe's explanation, ``stderr`` the last of the guest's stderr.

    ``keep_seconds`` is None if the sandbox is not a kept one.
    """

    container_id: str
    limits: Limits
    detail: str
    stderr: str
    keep_seconds: float | None = None

    def explain(self, reason: str, events: EngineEvents | None) -> SandboxUnavailableError:
        """Return why, within 2 s. Kills a container that still runs but cannot be reached, unless it is kept."""
        if reason == "protocol_violation":
            message = f"The sandbox broke the protocol ({self.detail}) and was cut off."
            return SandboxUnavailableError(reason, message, START_ANOTHER)
        if reason == "taken_over":
            return SandboxUnavailableError(
                reason,
                "The sandbox was taken over by another orchestrator, which uses it now.",
                phrased(
                    "Leave it to that one, or take it back with {back}.",
                    back=attach(self.container_id[:12], take_over=True),
                ),
            )
        fate = events.fate(self.container_id, FATE_SECONDS) if events is not None else None
        if fate is not None and fate.died:
            return self._died(fate)
        state = container_state(self.container_id)
        if state == "gone":
            message = "The sandbox ended; the engine's word on why was missed, because its event stream had been cut."
            return SandboxUnavailableError("removed", message, START_ANOTHER)
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
        ended = "It was ended with everything in it." if kill_container(self.container_id) else ""
        lost = "the Docker Engine was restarted" if events is None or not events.alive else "its connection was cut"
        message = f"The sandbox cannot be reached any more: {lost}. {ended} {self.detail}"
        return SandboxUnavailableError("pipe_broken", " ".join(message.split()), START_ANOTHER)

    def _died(self, fate: Fate) -> SandboxUnavailableError:
        if fate.oom_at is not None and fate.exit_code == 137 and not fate.killed_by_engine:
            message = f"The sandbox ran out of memory (limit {self.limits.memory_bytes} bytes) and was killed."
            return SandboxUnavailableError("out_of_memory", message, "Start another one with more memory_bytes.")
        if fate.exit_code == 137 and not fate.killed_by_engine and is_podman(connect()):
            message = (
                f"The sandbox ran out of memory (limit {self.limits.memory_bytes} bytes), or was killed from outside: "
                "Podman does not say which."
            )
            return SandboxUnavailableError("killed", message, START_ANOTHER)
        if fate.killed_by_engine or fate.exit_code == 137:
            return SandboxUnavailableError("killed", "The sandbox's container was killed from outside.", START_ANOTHER)
        if fate.exit_code == 0:  # as it does at the end of its input
            message = f"The connection to the sandbox was cut, and so it ended. {self.detail}".strip()
            return SandboxUnavailableError("pipe_broken", message, START_ANOTHER)
        if its_own := ended_by_itself(fate.exit_code, self.limits, self.keep_seconds):
            return its_own
        last = self.stderr.strip().splitlines()[-1:]
        ended = f"The guest ended by itself with exit code {fate.exit_code}{': ' + last[0][:300] if last else ''}."
        return SandboxUnavailableError("exited", ended, START_ANOTHER)


def end_unanswered(
    container_id: str, error: SandboxUnavailableError, on_kill: Callable[[], None]
) -> SandboxUnavailableError:
    """End the container of a guest that is silent past a command's deadline, and return the error to report.

    Nothing may be left running then. ``on_kill`` is called before the kill, so that the end of the pipe is not
    attributed to someone else.
    """
    state = container_state(container_id)
    if state == "paused":
        return SandboxUnavailableError(
            "no_answer",
            "The sandbox is paused: nothing in it runs until it is unpaused.",
            "Unpause it, or start another.",
        )
    hint = START_ANOTHER
    if state in ENDED:
        ended = "It has ended meanwhile."
    elif state == "unknown":
        ended = "The Docker Engine does not answer either."
        hint = "See whether `docker info` answers. Commands still end by themselves when their time is up."
    else:
        on_kill()
        if kill_container(container_id):
            ended = "It was ended with everything in it."
        else:
            ended = f"The Docker Engine was asked to end it, and has not answered within {ENGINE_SECONDS} second."
            hint = "See whether `docker info` answers, then start another sandbox; files in this one are lost."
    return SandboxUnavailableError("no_answer", f"{error.message} {ended}", hint)


def container_state(container_id: str, seconds: int = ENGINE_SECONDS) -> str:
    """Return the container's state in the engine's words ("running", "paused", …), "gone" or "unknown".

    It has the engine's answer to each of two requests within ``seconds``.
    """
    try:
        with translated():
            return str(connect(seconds).api.inspect_container(container_id)["State"]["Status"])
    except SandboxError as error:
        return "gone" if is_missing(error.__cause__) else "unknown"


def kill_container(container_id: str) -> bool:
    """Kill the container. Returns whether the engine confirms within a second that nothing of it runs."""
    try:
        with translated():
            connect(ENGINE_SECONDS).api.kill(container_id)
    except SandboxError as error:
        cause = error.__cause__  # 404: it is gone; 409: it does not run
        stopped = isinstance(cause, docker.errors.APIError) and cause.status_code == 409
        return stopped or is_missing(cause) or "container state improper" in error.message  # as Podman says with 500
    return True
