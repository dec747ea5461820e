"""Signatures of URLs: a digest of what the URL asks for and the token of its author, who is not named there."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from typing import Any, TypeVar

from sandbox.frozen import dataclass

T = TypeVar("T")
VERSION = "v1_"
# Who signed is found by trying tokens. Others have their turn after so many, which take about half a millisecond.
AT_ONCE = 250
# Beyond these a URL has to name its sandbox: the attempts take 50 ms of the service.
MOST_TRIED = 20_000


@dataclass(frozen=True, slots=True)
class Signed:
    """What was signed: texts before and after the token, and the digest of the whole."""

    before: Any
    after: bytes
    digest: bytes

    @classmethod
    def read(cls, before: str, after: str, signature: str) -> Signed | None:
        """Return it, None for a signature that nobody can have made."""
        text = signature.removeprefix(VERSION)
        try:
            digest = base64.b64decode(f"{text}=", validate=True)
        except (binascii.Error, ValueError):
            return None
        if text == signature or len(digest) != hashlib.sha256().digest_size:
            return None
        hashed = hashlib.sha256(before.encode("utf-8", "surrogatepass"))
        return cls(hashed, after.encode("utf-8", "surrogatepass"), digest)

    def is_by(self, token: bytes) -> bool:
        """Return whether it was signed with that token."""
        made = self.before.copy()
        made.update(token)
        made.update(self.after)
        return hmac.compare_digest(made.digest(), self.digest)

    async def signer(self, tokens: Iterable[tuple[T, bytes]]) -> T | None:
        """Return whose token it was signed with, if it is one of the first MOST_TRIED. Other tasks go on meanwhile."""
        for tried, (whose, token) in enumerate(tokens, 1):
            if self.is_by(token):
                return whose
            if tried == MOST_TRIED:
                return None
            if tried % AT_ONCE == 0:
                await asyncio.sleep(0)
        return None
