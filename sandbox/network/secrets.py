"""Masking of what must not be shown: secrets become stars of the same length, also where they come in pieces."""

from __future__ import annotations

from collections.abc import Iterable

MASK = b"*"


class Mask:
    """Masks ``secrets`` in bytes; every encoding of one that is to be found must be given as a secret of its own."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._secrets = sorted({one for one in secrets if one}, key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def whole(self, data: bytes) -> bytes:
        """``data`` with every secret in it masked; as long as it was."""
        for secret in self._secrets:
            if secret in data:
                data = data.replace(secret, MASK * len(secret))
        return data

    def begun(self, data: bytes) -> int:
        """How many of the last bytes of ``data`` may be the beginning of a secret."""
        most = min(len(data), len(self._secrets[0]) - 1) if self._secrets else 0
        return next(
            (size for size in range(most, 0, -1) if any(one.startswith(data[-size:]) for one in self._secrets)), 0
        )


class MaskedStream:
    """Masks bytes that come in pieces: holds back what may be the beginning of a secret until more is known."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What can be shown of ``data`` and of what was held back."""
        masked = self._mask.whole(self._held + data)
        shown = len(masked) - self._mask.begun(masked)
        self._held = masked[shown:]
        return masked[:shown]

    def finish(self) -> bytes:
        """What was held back at the end."""
        held, self._held = self._held, b""
        return held
