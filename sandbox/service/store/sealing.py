"""Encrypt what the store must not hold in the clear: secrets of tenants, and the variables of their sandboxes.

AES-256-GCM with a key in a file of its own beside the store. A copy of the store alone, such as a backup, reveals nothing.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import sqlite3
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sandbox.errors import ErrorCode, SandboxError

FILE = "secret.key"
KEY_BYTES, NONCE_BYTES = 32, 12
_CHECK = "the key of this store"
_WAY_BACK = (
    "Put the secret.key that belongs to this store back, with mode 0600. If it is lost, so are the secrets: move service.db away, "
    "start again, and end what still runs with `gamebox ls` and `gamebox rm --force`."
)


class Seal:
    """Encrypts and decrypts values. ``place`` names where a value belongs: it cannot be read from another place."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._of_digests = hmac.digest(key, b"digests of requests", "sha256")

    def close(self, value: Mapping[str, Any], place: str) -> bytes:
        """Return ``value``, which is JSON-ready, encrypted."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, json.dumps(value).encode(), place.encode())

    def digest(self, data: bytes) -> bytes:
        """Return a digest that tells nothing of ``data``, also where that can be guessed, to who has only the store."""
        return hmac.digest(self._of_digests, data, "sha256")

    def open(self, sealed: bytes, place: str) -> dict[str, Any]:
        """Return what ``close`` encrypted for that place. Raises SandboxError if it was changed, or by another key."""
        try:
            plain = self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], place.encode())
        except (InvalidTag, ValueError) as error:
            raise SandboxError(
                ErrorCode.io_error,
                "The service cannot decrypt a secret or a variable that this needs.",
                "Ask the operator.",
            ) from error
        found: dict[str, Any] = json.loads(plain)
        return found


def open_seal(folder: Path, connection: sqlite3.Connection) -> Seal:
    """Return the seal of the store, with a new key in ``folder`` if the store has none yet.

    Raises SandboxError ``setup_failed`` if the key is missing, not for its owner alone, or not that of the store.
    """
    path = folder / FILE
    row = connection.execute("SELECT sealed FROM sealing").fetchone()
    try:
        key = _read(path)
        if key is None:
            if row is not None:
                raise _refusal(f"The key {path} is missing, and the store has secrets that only it opens.")
            key = _make(path)
    except OSError as error:
        raise _refusal(f"The key {path} cannot be used: {error.strerror or error}.") from error
    seal = Seal(key)
    if row is None:
        connection.execute("INSERT INTO sealing (id, sealed) VALUES (1, ?)", (seal.close({"check": _CHECK}, _CHECK),))
        return seal
    try:
        seal.open(row["sealed"], _CHECK)
    except SandboxError as error:
        raise _refusal(f"{path} is not the key of the store beside it.") from error
    return seal


def _read(path: Path) -> bytes | None:
    """Return the key, or None if there is no file. Raises OSError, and SandboxError for a file that is not one of ours."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid not in (os.geteuid(), 0):
            raise _refusal(f"The key {path} can be read by others than its owner (mode {found.st_mode & 0o777:03o}).")
        text = os.read(descriptor, 1024)
    finally:
        os.close(descriptor)
    try:
        key = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise _refusal(f"{path} is not a key: it is not {2 * KEY_BYTES} hexadecimal digits.")
    return key


def _make(path: Path) -> bytes:
    """Write a new key. It is whole on the disk before anything is encrypted with it. Raises OSError."""
    key = secrets.token_bytes(KEY_BYTES)
    part = path.with_suffix(".new")
    part.unlink(missing_ok=True)  # of a start that was killed
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{key.hex()}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    part.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return key


def _refusal(message: str) -> SandboxError:
    return SandboxError(ErrorCode.setup_failed, message, _WAY_BACK)
