"""The arguments of handlers: the sandbox in which they work, and the request that they answer."""

from __future__ import annotations

from ..write_out import WriteOut

TYPE_CHECKING = False  # typing and dataclasses cost a guest a third of its start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Protocol


class Place:
    """The sandbox as handlers see it: absolute paths as bytes, sizes in bytes. Only ``begin`` changes it.

    ``roots`` are the folders that file operations may touch, the workspace first; relative paths start at ``workspace``.
    ``root_names`` are the paths by which callers know the roots, if these are other folders, as in a test. ``read_roots`` are
    folders that may only be read. ``user`` is the name of the user that commands run as; ``any_user`` says whether ``run`` may
    choose another one.
    ``interpreter`` is the argv prefix that starts this very Python with the guest and its libraries importable. ``launcher`` is the
    path of the program that starts commands. ``host_disk`` is for ``write_out``, see there.
    """

    __slots__ = (
        "any_user",
        "ca_bundle",
        "environ",
        "gid",
        "home",
        "interpreter",
        "launcher",
        "limits",
        "read_roots",
        "root_names",
        "roots",
        "spill",
        "uid",
        "user",
        "workspace",
        "write_out",
    )

    def __init__(
        self,
        workspace: bytes,
        home: bytes,
        spill: bytes,
        roots: tuple[bytes, ...],
        uid: int,
        gid: int,
        limits: dict[str, Any],
        interpreter: tuple[str, ...],
        environ: dict[str, str] | None = None,
        ca_bundle: str | None = None,
        user: str = "",
        any_user: bool = False,
        read_roots: tuple[bytes, ...] = (),
        root_names: tuple[bytes, ...] = (),
        launcher: str = "",
        host_disk: bytes | None = None,
    ) -> None:
        self.workspace = workspace
        self.home = home
        self.spill = spill
        self.roots = roots
        self.uid = uid
        self.gid = gid
        self.limits = limits
        self.interpreter = interpreter
        self.environ = environ or {}
        self.ca_bundle = ca_bundle
        self.user = user
        self.any_user = any_user
        self.read_roots = read_roots
        self.root_names = root_names
        self.launcher = launcher
        self.write_out = WriteOut(host_disk)


class HelperResult:
    """How a helper process ended; ``exit_code`` is None if a signal or the timeout ended it."""

    __slots__ = ("exit_code", "stderr", "stdout", "timed_out", "truncated")

    def __init__(self, exit_code: int | None, stdout: bytes, stderr: bytes, truncated: bool, timed_out: bool) -> None:
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr
        self.truncated = truncated
        self.timed_out = timed_out


if TYPE_CHECKING:

    class Call(Protocol):
        """One request in progress. Handlers run in a thread that acts on files as the sandbox's user."""

        place: Place
        args: dict[str, Any]

        def body(self) -> Iterator[bytes]:
            """Yield the bytes that the caller streams. Raises Fault ``transfer_incomplete`` if they end too soon."""

        def send(self, chunk: bytes) -> None:
            """Stream bytes back; blocks while the caller does not take them. Raises Fault ``cancelled`` if it gave up."""

        def run_helper(
            self,
            argv: list[str],
            *,
            timeout_seconds: float,
            max_output_bytes: int,
            cwd_fd: int | None = None,
            stdin: bytes | int = b"",
            env: dict[str, str] | None = None,
        ) -> HelperResult:
            """Run a program as the sandbox's user and return its output; everything that it started is killed at the end.

            ``stdin`` is bytes or a descriptor to read from. Raises Fault ``program_not_found`` and the like.
            """

    class StateCall(Call, Protocol):
        """A request whose handler must know what runs."""

        processes: Any
        """The sandbox's commands and sessions (``processes.Processes``)."""

        def await_report(self, start: Callable[[Callable[[Any], None]], Callable[[], None]]) -> Any:
            """Call ``start(report)`` in the reactor's thread, wait for ``report(value)`` and return the value; raise it if a Fault.

            ``start`` returns a function that ends the work early, upon which it must report, too.
            """

        def hand_over(self, work: Callable[[], None]) -> None:
            """Call ``work`` in the reactor's thread, which owns commands and sessions, and wait. What it raises is raised here."""

else:
    Call = StateCall = object
