"""A session of ``run`` as an object: opened, used and closed on purpose, where ``run(session=...)`` makes one that is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, Unpack

from sandbox import operations as op
from sandbox.envelope import Envelope, Failure
from sandbox.errors import ErrorCode
from sandbox.messages.faults import word_fault

from .generated.methods import GeneratedMethods, RunOptions


class Session:
    """The session ``name`` of ``environment``: use it as a context manager, or ``open()`` and ``close()``.

    With ``user`` it belongs to that user, see ``OperationMethods.run``.
    """

    def __init__(self, environment: GeneratedMethods, name: str, user: str | int | None = None) -> None:
        self.name = name
        self.user = user
        self._environment = environment

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}{'' if self.user is None else f' of {self.user!r}'}>"

    def open(self) -> Envelope[op.OpenSessionResult]:
        """Make the session; failure ``session_exists`` if there is one of that name."""
        return self._environment.open_session(self.name, user=self.user)

    def run(self, command: str | Sequence[str] | None = None, **options: Unpack[RunOptions]) -> Envelope[op.RunResult]:
        """See ``OperationMethods.run``; failure ``session_not_found`` if the session is not open."""
        options.update({"session": self.name, "user": self.user, "needs_session": True})
        return self._environment.run(command, **options)

    def exists(self) -> bool:
        """Return whether the session is open. Raises SandboxError if the sandbox cannot say."""
        return is_among(self.name, self._environment.sessions(user=self.user).unwrap())

    def close(self) -> Envelope[op.EndSessionResult]:
        """End the session; failure ``session_not_found`` if it is not open. Its commands in the background go on."""
        return ended(self.name, self._environment.end_session(self.name, user=self.user))

    def __enter__(self) -> Self:
        self.open().unwrap()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def is_among(name: str, listed: op.SessionsResult) -> bool:
    """Return whether a session of that name is listed."""
    return any(each.name == name for each in listed.sessions)


def ended(name: str, answer: Envelope[op.EndSessionResult]) -> Envelope[op.EndSessionResult]:
    """Return the answer of ``end_session``; failure ``session_not_found`` where there was nothing to end."""
    if answer.ok and not answer.unwrap().existed:
        words = word_fault(ErrorCode.session_not_found, {"session": name}, "end_session")
        return Failure(ErrorCode.session_not_found, words.message, words.hint, result=answer.unwrap())
    return answer
