"""Backend: what a place to run sandboxes provides. ``SandboxedEnvironment`` does everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from sandbox.frozen import dataclass

if TYPE_CHECKING:
    from sandbox.errors import SandboxUnavailableError
    from sandbox.network.policy import Network
    from sandbox.network.services.names import Name
    from sandbox.pipe.reattaching import ByteStream, Keep
    from sandbox.pipe.transport import Transport


@dataclass(frozen=True, slots=True)
class StartRequest:
    """What the environment adds to what a backend was made with. ``names`` lead to services, ``variables`` are for commands.

    ``meanwhile`` is called before the longest wait of the start; it returns at once.
    """

    network: Network
    is_paused: Callable[[], bool]
    names: tuple[Name, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    stands_by: bool = False  # nobody uses it yet, see ``serve``
    meanwhile: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class GuestStream:
    """A byte stream to a guest, which was greeted before, with this ``nonce``, if ``place`` is None."""

    stream: ByteStream
    place: Mapping[str, Any] | None = None  # tells the guest where it is
    hello: Mapping[str, Any] = field(default_factory=dict)  # further fields of the greeting
    keep: Keep | None = None  # opens a stream again after a cut
    nonce: bytes | None = None
    received: bytes = b""  # what was read already


@dataclass(frozen=True, slots=True)
class Description:
    """What people and models read about a sandbox. ``network`` and ``limits`` replace the words of policy and limits.

    ``contents`` is what its image says that it contains.
    """

    sandbox: str
    summary: tuple[str, ...] = ()
    network: str | None = None
    limits: str | None = None
    disk: str = ""
    workspace_bytes: int | None = None
    read_only_root: bool = False
    checkpoints_hold_all: bool = True
    contents: str = ""


class Backend(Protocol):
    """One sandbox in one place. Methods raise SandboxError."""

    attached: bool  # whether another process made the sandbox

    def open(self, request: StartRequest) -> GuestStream:
        """Start a guest, or find one, and open a byte stream to it. After an error ``close`` removes what was made."""

    def serve(self, asked: Any, request: StartRequest) -> Mapping[str, str]:
        """Let a sandbox that stood by serve with the options of ``asked``, of this class. Return the variables of commands."""

    def note_acquired(self) -> None:
        """Note that a sandbox that stood by is somebody's now. ``acquire`` waits for this."""

    def check(self, facts: Mapping[str, Any], transport: Transport) -> None:
        """Compare what the guest read back from its kernel with what was asked; open a second way for bytes if there is one."""

    def close(self, *, detach: bool) -> None:
        """End the sandbox, or leave it running; release everything else. May be called more than once.

        What takes time to remove may be removed later, in the background.
        """

    def wait_until_gone(self) -> None:
        """Wait until nothing is left of a sandbox that ``close`` ended; a failure is logged."""

    def outlives_close(self) -> bool:
        """Return whether a started sandbox stays when its environment is closed."""

    def claim_removal(self, *, left: bool) -> bool:
        """Prepare to remove a sandbox that ``close`` left before, or not. Returns False if another orchestrator has it now."""

    def explain(self, reason: str, detail: str) -> SandboxUnavailableError:
        """Return why the stream ended; within 2 seconds."""

    def explain_silence(
        self, error: SandboxUnavailableError, give_up: Callable[[SandboxUnavailableError], None]
    ) -> SandboxUnavailableError:
        """End a guest that did not answer in time, so that nothing is left running; ``give_up`` ends the pipe to it."""

    def freeze(self) -> None:
        """Stop every process of the sandbox."""

    def thaw(self) -> None:
        """Undo ``freeze``."""

    def describe(self) -> Description:
        """Return what people and models read about the sandbox, as it is now."""
