"""Build: carry out a plan, each step in a sandbox of the image before it, and commit what it changed as a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sandbox.limits import GIB, Limits
from sandbox.network.ceiling import Ceiling
from sandbox.network.policy import Network

from .archives import ArchiveStore
from .steps import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildLimits:
    """Limits of one build. ``sandbox`` are those of each step's sandbox; its ``disk_bytes`` bounds what one step may write.

    ``image_bytes`` bounds what all steps together add to the base, ``log_bytes`` the text that is reported.
    """

    sandbox: Limits = field(default_factory=Limits)
    timeout_seconds: float = 3600.0
    step_timeout_seconds: float = 1800.0
    image_bytes: int = 10 * GIB
    steps: int = 100
    log_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of a build's log: printable text without escape sequences.

    ``step`` is "base", the number of the step from 1, or "finalize"; ``at`` is in seconds since the epoch.
    """

    at: float
    level: Literal["debug", "info", "warn", "error"]
    step: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """An image that was built. ``bytes`` is its size with its base, ``added_bytes`` without."""

    id: str
    bytes: int
    added_bytes: int
    steps_run: int
    steps_cached: int
    env: Mapping[str, str]
    workdir: str
    user: str
    start_command: str
    ready_command: str


class Build:
    """One build of ``plan`` for ``owner``. ``run`` may be called once, in any thread; ``cancel`` in any other.

    ``network`` and ``ceiling`` apply to the sandboxes of the steps as to any other sandbox of the owner. ``env`` are variables for
    the commands of this build only, which may be secret: they are masked in the log and are in no layer, no configuration and no
    key of the cache. ``report`` gets the log, in the thread of ``run`` or another one, one call at a time.
    ``on_sandbox(id, True)`` is called when a step's sandbox is about to start and ``on_sandbox(id, False)`` when it has ended, for
    quotas: what it raises ends the build.
    ``run_start`` also starts the image once with its start command and waits until its ready command says 0.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        owner: str = "",
        name: str = "",
        archives: ArchiveStore | None = None,
        limits: BuildLimits | None = None,
        network: Network | None = None,
        ceiling: Ceiling | None = None,
        env: Mapping[str, str] | None = None,
        ca_bundle: Path | None = None,
        runtime: str | None = None,
        report: Callable[[LogEntry], None] | None = None,
        on_sandbox: Callable[[str, bool], None] | None = None,
        run_start: bool = False,
    ) -> None:
        raise NotImplementedError

    def run(self) -> BuiltImage:
        """Carry out the plan and return the image, which has ``name`` in the owner's ``ImageStore`` then, if one was given.

        Raises SandboxError: ``image_build_failed`` (its ``result`` is {"step": ..., "exit_code": ... or None, "log": last lines}),
        ``image_not_found`` for the base, ``invalid_arguments`` for the plan, ``cancelled``, ``timeout`` (with the same ``result``),
        ``capacity`` if the image would be too large, and the engine's errors. Layers of finished steps stay in the cache.
        """
        raise NotImplementedError

    def cancel(self) -> None:
        """End the build soon: ``run`` raises ``cancelled``. May be called at any time, more than once, also after its end."""
        raise NotImplementedError
