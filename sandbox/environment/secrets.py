"""The secrets of an environment: given to commands as variables, and masked in everything that it answers."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel

from sandbox import operations as op
from sandbox.argument_types import check_types
from sandbox.envelope import Envelope, Notice, Success
from sandbox.errors import ErrorCode, SandboxError, configuration_error
from sandbox.readers import changed
from sandbox.text.masking import LEAST_CHARS, Mask, forms_of

T = TypeVar("T")
# What the kernel takes of one variable, its name included.
MOST_BYTES = 128 * 1024 - 2
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CUT = re.compile(r"(\n\[\.\.\. \d+ bytes cut[^\n]*\.\.\.\]\n)")
# Texts that were cut out of longer ones.
_PARTS = (
    op.LogsResult, op.SendResult, op.WaitForResult, op.ReadResult, op.BrowseResult, op.SearchResult, op.ProcessesResult,
)  # fmt: skip
# A guest cuts no text that it tells shorter than that, so only a longer one may end within a secret.
SHORTEST_CUT = 40
# Bytes for the host's own code, which are what they are in the sandbox.
_AS_THEY_ARE = (op.DownloadResult, op.PatchResult)


class Secrets:
    """Values by name, and the mask that hides them; may be used by any thread. False as long as there are none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[str, tuple[str, bool]] = {}
        self._forms: dict[bytes, bytes | None] = {}
        self._followers: list[Secrets] = []
        self.mask = Mask({})

    def __bool__(self) -> bool:
        return bool(self.mask)

    def add(self, name: str, value: str, always: bool) -> None:
        """Give ``value`` to commands as the variable ``name`` and mask it. Raises SandboxError ``invalid_configuration``."""
        check_types("secret", name=(name, str), value=(value, str))
        _check(name, value)
        with self._lock:
            self._given[name] = (value, always)
        self.hide(name, value)

    def hide(self, name: str, value: str) -> None:
        """Mask ``value`` as ``***name***``; one that is too short for it is masked nowhere."""
        self.hide_forms(dict.fromkeys(forms_of(value), f"***{name}***".encode()))

    def followed_by(self, other: Secrets) -> None:
        """Have ``other`` mask what is masked here, now and later; its commands are given none of it."""
        with self._lock:
            self._followers.append(other)
            forms = dict(self._forms)
        other.hide_forms(forms)

    def hide_forms(self, forms: Mapping[bytes, bytes | None]) -> None:
        """Mask these as they are; see ``Mask``."""
        with self._lock:
            self._forms.update(forms)
            self.mask = Mask(self._forms)
            followers = tuple(self._followers)
        for follower in followers:
            follower.hide_forms(forms)

    def copy_to(self, other: Secrets) -> None:
        """Have ``other`` give and mask the same."""
        with self._lock, other._lock:
            other._given.update(self._given)
            forms = dict(self._forms)
        other.hide_forms(forms)

    def variables(self, asked: Iterable[str] | None) -> dict[str, str]:
        """What a command gets that asks for ``asked``. Raises SandboxError ``invalid_arguments`` for what is no secret."""
        with self._lock:
            found = {name: value for name, (value, always) in self._given.items() if always}
            for name in asked or ():
                if name not in self._given:
                    known = ", ".join(self._given) or "none"
                    raise SandboxError(
                        ErrorCode.invalid_arguments,
                        f"There is no secret {name[:200]!r}.",
                        f"There are: {known}. Give another one with env.secret(name, value).",
                    )
                found[name] = self._given[name][0]
            return found

    def describe(self) -> dict[str, str]:
        """The section for the prompt; {} where commands have none without asking for it."""
        with self._lock:
            names = [name for name, (_, always) in self._given.items() if always]
        if not names:
            return {}
        shown = f"their values are shown as ***{names[0]}*** and the like"
        return {"secrets": f"Commands have the secret variables {', '.join(names)}; {shown}."}

    # --- masking ------------------------------------------------------------------
    def envelope(self, envelope: Envelope[T]) -> Envelope[T]:
        """The same with every secret masked, but for the bytes of downloads and patches."""
        if not self:
            return envelope
        notices = tuple(Notice(n.code, self.mask.text(n.message), changed(n.hint, self.mask.text)) for n in envelope.notices)
        result: Any = self._result(envelope.result)
        if isinstance(envelope, Success):
            return replace(envelope, result=result, notices=notices)
        text = self.mask.text
        return replace(envelope, result=result, notices=notices, error=text(envelope.error), hint=changed(envelope.hint, text))

    def data(self, value: Any) -> Any:
        """JSON-ready data with every text in it masked."""
        if not self:
            return value
        return self._value(value, self.mask.text)

    def fields(self, value: Any) -> Any:
        """What a guest told, with every text in it masked: before it is worded, for no mask finds a part of a secret in words that
        were cut. What the guest itself may have cut is masked at its borders as well.
        """
        return self._value(value, self._told) if self else value

    def _told(self, text: str) -> str:
        return self.mask.part(text) if len(text) >= SHORTEST_CUT else self.mask.text(text)

    def _result(self, result: Any) -> Any:
        if isinstance(result, _AS_THEY_ARE):
            kept = {name: getattr(result, name) for name in ("content", "patch") if hasattr(result, name)}
            return self._value(result, self.mask.text).model_copy(update=kept)
        if isinstance(result, _PARTS):
            masked = self._value(result, self.mask.part)
            screen = getattr(result, "screen", None)
            return masked if screen is None else masked.model_copy(update={"screen": self._result(screen)})
        if isinstance(result, op.ScreenResult):
            masked = self._value(result, self.mask.text)
            return masked.model_copy(update={"text": self.mask.drawn(result.text)})
        if isinstance(result, op.RunResult) and result.truncated:
            masked = self._value(result, self.mask.text)
            texts = {name: self._cut_in_two(getattr(masked, name)) for name in ("output", "stdout", "stderr")}
            return masked.model_copy(update=texts)
        return self._value(result, self.mask.text)

    def _cut_in_two(self, text: str) -> str:
        """An output without its middle: a secret may lie on either border."""
        pieces = _CUT.split(text)
        return "".join(piece if _CUT.fullmatch(piece) else self.mask.part(piece) for piece in pieces) if text else text

    def _value(self, value: Any, mask: Any) -> Any:
        if isinstance(value, str):
            return mask(value)
        if isinstance(value, bytes):
            return self.mask.whole(value)
        if isinstance(value, BaseModel):
            fields = {name: getattr(value, name) for name in type(value).model_fields}
            masked = {name: self._value(each, mask) for name, each in fields.items()}
            return value.model_copy(update={name: each for name, each in masked.items() if each is not fields[name]})
        if isinstance(value, Mapping):
            return {self._value(key, mask): self._value(each, mask) for key, each in value.items()}
        if isinstance(value, tuple | list):
            return type(value)(self._value(each, mask) for each in value)
        return value


def _check(name: Any, value: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise configuration_error(f"{str(name)[:80]!r} is no name for a variable.", "Use letters, digits and underscores.")
    if not isinstance(value, str) or "\0" in value:
        raise configuration_error(f"The value of {name} is no text that a variable can hold.", "Give a str without NUL.")
    if len(value.strip()) < LEAST_CHARS:
        raise configuration_error(
            f"The value of {name} has fewer than {LEAST_CHARS} characters: masking it would garble other texts.",
            "Use a longer secret, or give it as a plain variable with run(env=...).",
        )
    if len(value.encode("utf-8", "surrogateescape")) + len(name) > MOST_BYTES:
        raise configuration_error(f"The value of {name} is longer than a variable may be.", "Upload it as a file.")
