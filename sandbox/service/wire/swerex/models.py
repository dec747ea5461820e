"""Bodies of SWE-ReX's requests, and its errors. Fields that are not known here are ignored: a client may be newer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, RootModel

from sandbox.envelope import Failure
from sandbox.errors import ErrorCode
from sandbox.service.http.bodies import Body

SessionName = Annotated[str, Field(min_length=1, max_length=64)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
# What is printed beyond "the output so far" is looked for in this many texts.
Expected = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...], Field(max_length=16)]
Place = Annotated[str, Field(min_length=1, max_length=4096)]


class Wire(Body):
    """Base of the bodies."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, strict=True)


class CreateSession(Wire):
    """A shell that is kept."""

    session: SessionName = "default"
    startup_source: tuple[Place, ...] = Field((), max_length=16)
    startup_timeout: Seconds = 1.0


class BashAction(Wire):
    """A command for the shell, or a line for the program that runs in it."""

    action_type: Literal["bash"]
    command: str
    session: SessionName = "default"
    timeout: Seconds | None = None
    is_interactive_command: bool = False
    is_interactive_quit: bool = False
    check: Literal["silent", "raise", "ignore"] = "raise"
    error_msg: str = ""
    expect: Expected = ()


class BashInterruptAction(Wire):
    """Ctrl-C for what runs in the shell."""

    action_type: Literal["bash_interrupt"]
    session: SessionName = "default"
    timeout: Seconds = 0.2
    n_retry: int = Field(3, ge=1, le=100)
    expect: Expected = ()


class Action(RootModel[Annotated[BashAction | BashInterruptAction, Field(discriminator="action_type")]]):
    """Either of both."""


class CloseSession(Wire):
    """The shell to end."""

    session: SessionName = "default"


class Execute(Wire):
    """A command beside all sessions. ``env`` is added to the variables of the sandbox."""

    command: str | tuple[str, ...]
    timeout: Seconds | None = None
    shell: bool = False
    check: bool = False
    error_msg: str = ""
    env: dict[str, str] | None = Field(None, max_length=256)
    cwd: Place | None = None
    merge_output_streams: bool = False


class ReadFile(Wire):
    """The file to read. Other codecs are refused: some take far longer than their input suggests."""

    path: Place
    encoding: Literal["utf-8", "utf8", "ascii", "latin-1", "iso-8859-1", "cp1252", "utf-16"] | None = None
    errors: Literal["strict", "ignore", "replace", "backslashreplace"] | None = None


class WriteFile(Wire):
    """The file to write."""

    path: Place
    content: str


class SwerexError(Exception):
    """What the client raises again as the class of that path."""

    def __init__(self, message: str, kind: str = "SwerexException", **extra: str) -> None:
        super().__init__(message)
        self.class_path = f"builtins.{kind}" if kind in _BUILTIN else f"swerex.exceptions.{kind}"
        self.extra = extra

    def data(self) -> dict[str, Any]:
        """Return it as the wire has it. There is no traceback: it would tell of the service."""
        said = {"message": str(self), "class_path": self.class_path, "traceback": "", "extra_info": self.extra}
        return {"swerexception": said}


_BUILTIN = frozenset({"FileNotFoundError", "IsADirectoryError", "OSError", "PermissionError", "RuntimeError", "ValueError"})
_KINDS: dict[str, str] = {
    ErrorCode.path_not_found: "FileNotFoundError",
    ErrorCode.program_not_found: "FileNotFoundError",
    ErrorCode.working_directory_invalid: "FileNotFoundError",
    ErrorCode.is_a_directory: "IsADirectoryError",
    ErrorCode.permission_denied: "PermissionError",
    ErrorCode.path_outside_roots: "PermissionError",
    ErrorCode.program_not_executable: "PermissionError",
    ErrorCode.io_error: "OSError",
    ErrorCode.no_space: "OSError",
    ErrorCode.invalid_arguments: "ValueError",
    ErrorCode.timeout: "CommandTimeoutError",
}


def error_of(failure: Failure[Any]) -> SwerexError:
    """Return what a failure is to the client."""
    return SwerexError(f"{failure.error} {failure.hint}".rstrip(), _KINDS.get(failure.code, "RuntimeError"))
