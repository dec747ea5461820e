"""Short-lived tokens for one port of one sandbox: signed, so that none is kept. A page has one where it must have no key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.clock import now

FILE = "ports.key"
SECRET_BYTES = 32
PREFIX = "gbp_"
_TOKEN = re.compile(r"gbp_([0-9a-z]{1,40})_([0-9]{1,12})_([A-Za-z0-9_-]{43})")


class PortTokens:
    """Makes and reads tokens, signed with a file in ``folder``. A token ends with the key that it was made with, too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._secret: bytes | None = None

    def make(self, sandbox: str, port: int, key: str, expires_at: float) -> str:
        """Return a token for the port, asked for with the key of that id."""
        until = int(expires_at)
        return f"{PREFIX}{key}_{until}_{self._signature(sandbox, port, key, until)}"

    def key_of(self, token: str, sandbox: str, port: int) -> str | None:
        """Return the id of the key with which a token for this port was asked for; None if the token is not valid here and now."""
        found = _TOKEN.fullmatch(token)
        if found is None:
            return None
        key, until, signature = found[1], int(found[2]), found[3]
        right = hmac.compare_digest(signature, self._signature(sandbox, port, key, until))
        return key if right and now() < until else None

    def _signature(self, sandbox: str, port: int, key: str, until: int) -> str:
        return self.sign(f"gamebox port token 1|{sandbox}|{port}|{key}|{until}")

    def sign(self, text: str) -> str:
        """Return the signature of a text, whose beginning says what kind of token it is."""
        if self._secret is None:
            self._secret = load_secret(self._folder)
        digest = hmac.new(self._secret, text.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def load_secret(folder: Path) -> bytes:
    """Return what tokens are signed with, from a file in the service's folder, which is made if it is missing. Raises SandboxError.

    Without that file, all tokens that were given out are invalid; nothing else is lost.
    """
    path = folder / FILE
    try:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            if len(found := path.read_bytes()) == SECRET_BYTES:
                return found
            path.unlink()  # a service was killed while it wrote it
            return load_secret(folder)
        made = secrets.token_bytes(SECRET_BYTES)
        try:
            os.write(descriptor, made)
        finally:
            os.close(descriptor)
        return made
    except OSError as error:
        raise SandboxError(
            ErrorCode.setup_failed, f"{path} could not be used: {error.strerror}.", "Give another --data folder."
        ) from error
