"""The operations on the sessions of ``run``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from sandbox.text.excerpt import SHOWN_CHARS

from .base import Request, User
from .result import Result
from .table import operation


class OpenSessionResult(Result):
    """The new session; ``cwd`` is the folder that its first command starts in."""

    session: str
    cwd: str

    def to_text(self, chars: int = SHOWN_CHARS) -> str:  # noqa: ARG002
        """Return one line about it."""
        return f"The session {self.session!r} is open and starts in {self.cwd}."


@operation(
    "open_session",
    OpenSessionResult,
    for_models=False,
    method_notes="A session that exists already is the failure ``session_exists``.",
)
class OpenSession(Request):
    """Make a session of run; it fails if there is one of that name."""

    session: str = Field(min_length=1, max_length=64, description="Name of the session.")
    user: User = None


class SessionState(BaseModel):
    """One session: its next command starts in ``cwd``, and waits as long as the session is ``busy`` with another."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(max_length=64)
    cwd: str = Field(max_length=8192)
    busy: bool = False


class SessionsResult(Result):
    """The sessions of one user, those that ``run`` made by itself included."""

    sessions: tuple[SessionState, ...] = Field((), max_length=4096)

    def to_text(self, chars: int = SHOWN_CHARS) -> str:  # noqa: ARG002
        """Return one line for each session."""
        lines = [f"{each.name} in {each.cwd}{', in use' if each.busy else ''}" for each in self.sessions]
        return "\n".join(lines) or "There is no session."


@operation(
    "sessions",
    SessionsResult,
    repeatable=True,
    for_models=False,
    method_notes="It lists those that ``run`` and ``open_session`` have made and ``end_session`` has not ended.",
)
class Sessions(Request):
    """List the sessions of run."""

    user: User = None


class EndSessionResult(Result):
    """``existed`` is false if there was no such session."""

    session: str
    existed: bool = False

    def _words(self) -> str:
        """Return one line that says what became of the session."""
        if self.existed:
            return f"[the session {self.session!r} was ended: its folder and variables are forgotten]"
        return f"[there is no session {self.session!r}, so nothing was done]"


@operation("end_session", EndSessionResult, method_notes="With ``user``, it is that user's session of that name.")
class EndSession(Request):
    """Forget a session of run: its folder, variables and functions. The number of sessions is limited; commands in it go on."""

    session: str = Field(min_length=1, max_length=64, description="Name of the session.")
    user: User = None
