"""The secrets of an environment: given to commands as variables, and masked in everything that it answers."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from sandbox import operations as op
from sandbox.argument_types import check_types
from sandbox.envelope import Envelope, Notice, Success
from sandbox.errors import ErrorCode, SandboxError, configuration_error
from sandbox.readers import changed
from sandbox.text.masking import LEAST_CHARS, Mask, forms_of, map_texts

T = TypeVar("T")
# What the kernel takes of one variable, its name included.
MOST_BYTES = 128 * 1024 - 2
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Secrets:
    """Values by name, and the mask that hides them; may be used by any thread. False as long as there are none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, tuple[str, bool]] = {}
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
            self._values[name] = (value, always)
        self.hide(name, value)

    def hide(self, name: str, value: str) -> None:
        """Mask ``value`` as ``***name***``; one that is too short for it is masked nowhere."""
        self.hide_forms(dict.fromkeys(forms_of(value), f"***{name}***".encode()))

    def followed_by(self, other: Secrets) -> None:
        """Have ``other`` mask what is masked here, now and later; its commands get none of these secrets."""
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
            other._values.update(self._values)
            forms = dict(self._forms)
        other.hide_forms(forms)

    def variables(self, asked: Iterable[str] | None) -> dict[str, str]:
        """Return the variables of a command with ``secrets=asked``. Raises SandboxError ``invalid_arguments`` for unknown names."""
        with self._lock:
            found = {name: value for name, (value, always) in self._values.items() if always}
            for name in asked or ():
                if name not in self._values:
                    known = ", ".join(self._values) or "none"
                    raise SandboxError(
                        ErrorCode.invalid_arguments,
                        f"There is no secret {name[:200]!r}.",
                        f"There are: {known}. Give another one with env.secret(name, value).",
                    )
                found[name] = self._values[name][0]
            return found

    def describe(self) -> dict[str, str]:
        """Return the section for the prompt; {} if no secret is a variable of every command."""
        with self._lock:
            names = [name for name, (_, always) in self._values.items() if always]
        if not names:
            return {}
        shown = f"their values are shown as ***{names[0]}*** and the like"
        return {"secrets": f"Commands have the secret variables {', '.join(names)}; {shown}."}

    def envelope(self, envelope: Envelope[T]) -> Envelope[T]:
        """Return the envelope with every secret masked, except in the bytes of downloads and patches."""
        if not self:
            return envelope
        notices = tuple(
            Notice(n.code, self.mask.text(n.message), changed(n.hint, self.mask.text)) for n in envelope.notices
        )
        result: Any = self._result(envelope.result)
        if isinstance(envelope, Success):
            return replace(envelope, result=result, notices=notices)
        text = self.mask.text
        return replace(
            envelope, result=result, notices=notices, error=text(envelope.error), hint=changed(envelope.hint, text)
        )

    def data(self, value: Any) -> Any:
        """Return JSON-ready data with every text in it masked."""
        if not self:
            return value
        return map_texts(value, self.mask.text, self.mask.whole)

    def _result(self, result: Any) -> Any:
        mask = self.mask
        return result.masked(mask) if isinstance(result, op.Result) else map_texts(result, mask.text, mask.whole)


def _check(name: Any, value: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise configuration_error(
            f"{str(name)[:80]!r} is not a valid name for a variable.", "Use letters, digits and underscores."
        )
    if not isinstance(value, str) or "\0" in value:
        raise configuration_error(
            f"The value of {name} is not a text that a variable can hold.", "Give a str without NUL."
        )
    if len(value.strip()) < LEAST_CHARS:
        raise configuration_error(
            f"The value of {name} has fewer than {LEAST_CHARS} characters: masking it would garble other texts.",
            "Use a longer secret, or give it as a plain variable with run(env=...).",
        )
    if len(value.encode("utf-8", "surrogateescape")) + len(name) > MOST_BYTES:
        raise configuration_error(f"The value of {name} is longer than a variable may be.", "Upload it as a file.")
