"""Why the pipe to a sandbox ended, worded within 2 s."""

from __future__ import annotations

from sandbox.ends import of_its_own_accord
from sandbox.errors import SandboxError, SandboxUnavailableError
from sandbox.limits import Limits

from .engine import connect, translated
from .events import EngineEvents, Fate

# That long for the engine's own word, the rest of the two seconds for asking it.
FATE_SECONDS = 1.2
ENGINE_SECONDS = 1
_AGAIN = "Start another sandbox; files in this one are lost."


def post_mortem(
    reason: str, detail: str, events: EngineEvents | None, container_id: str, limits: Limits, stderr: str
) -> SandboxUnavailableError:
    """From the engine's events; ``stderr`` is the last that the guest wrote to it."""
    if reason == "protocol_violation":
        return SandboxUnavailableError(reason, f"The sandbox broke the protocol ({detail}) and was cut off.", _AGAIN)
    if reason == "taken_over":
        return SandboxUnavailableError(
            reason,
            "The sandbox was taken over by another orchestrator, which uses it now.",
            f"Leave it to that one, or take it back with DockerEnvironment.attach({container_id[:12]!r}, take_over=True).",
        )
    fate = events.fate(container_id, FATE_SECONDS) if events is not None else None
    if fate is not None and fate.died:
        return _of_death(fate, detail, limits, stderr)
    if events is None or not events.alive:
        if _engine_answers():
            message = "The sandbox ended; the engine's word on why was missed, because its event stream had been cut."
            return SandboxUnavailableError("removed", message, _AGAIN)
        return SandboxUnavailableError(
            "engine_gone", f"The Docker Engine is gone. {detail}".strip(), "Start the engine again."
        )
    return SandboxUnavailableError("pipe_broken", f"The pipe to the sandbox broke. {detail}".strip(), _AGAIN)


def _of_death(fate: Fate, detail: str, limits: Limits, stderr: str) -> SandboxUnavailableError:
    if fate.oom_at is not None and fate.exit_code == 137 and not fate.killed_by_engine:
        message = f"The sandbox ran out of memory (limit {limits.memory_bytes} bytes) and was killed."
        return SandboxUnavailableError("out_of_memory", message, "Start another one with more memory_bytes.")
    if fate.killed_by_engine or fate.exit_code == 137:
        return SandboxUnavailableError("killed", "The sandbox's container was killed from outside.", _AGAIN)
    if end := of_its_own_accord(fate.exit_code, limits):
        return end
    if fate.exit_code == 0:  # which it does at the end of its input
        return SandboxUnavailableError(
            "pipe_broken", f"The connection to the sandbox was cut, and so it ended. {detail}".strip(), _AGAIN
        )
    said = stderr.strip().splitlines()[-1:]
    ended = f"The guest ended by itself with exit code {fate.exit_code}{': ' + said[0][:300] if said else ''}."
    return SandboxUnavailableError("exited", ended, _AGAIN)


def _engine_answers() -> bool:
    try:
        with translated():
            connect(ENGINE_SECONDS).ping()
    except SandboxError:
        return False
    return True
