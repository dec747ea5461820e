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
# The key that a rotation is about to make the store's.
NEXT_FILE = "secret.key.next"
KEY_BYTES, NONCE_BYTES = 32, 12
_CHECK = "the key of this store"
_WAY_BACK = (
    "Put the secret.key that belongs to this store back, with mode 0600. If it is lost, so are the secrets: move service.db away, "
    "start again, and end what still runs with `gamebox ls` and `gamebox rm --force`."
)


class Seal:
    """Encrypts and decrypts values. ``place`` names where a value belongs: it cannot be read from another place."""

    def __init__(self, key: bytes, digests: bytes | None = None) -> None:
        self._cipher = AESGCM(key)
        self.digests = digests or hmac.digest(key, b"digests of requests", "sha256")
        """The key of digests, which a rotation keeps: a request that is sent again after it has to be known."""

    def close(self, value: Mapping[str, Any], place: str) -> bytes:
        """Return ``value``, which is JSON-ready, encrypted."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, json.dumps(value).encode(), place.encode())

    def digest(self, data: bytes) -> bytes:
        """Return a digest that tells nothing of ``data``, also where that can be guessed, to who has only the store."""
        return hmac.digest(self.digests, data, "sha256")

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


def open_seal(folder: Path, connection: sqlite3.Connection, *, settle: bool = False) -> Seal:
    """Return the seal of the store, with a new key in ``folder`` if the store has none yet.

    A rotation that was killed has left the next key beside the present one: with ``settle``, the one that is not the store's is
    removed. Raises SandboxError ``setup_failed`` if the key is missing, not for its owner alone, or not that of the store.
    """
    path, following = folder / FILE, folder / NEXT_FILE
    row = connection.execute("SELECT sealed FROM sealing").fetchone()
    try:
        key, next_key = read_key(path), read_key(following)
        if row is None:
            return _begun(connection, key or _made(path))
        if next_key is not None and (seal := _opened(next_key, row["sealed"])) is not None:
            if settle:
                replace_file(following, path)
            return seal
        if key is None:
            raise _refusal(f"The key {path} is missing, and the store has secrets that only it opens.")
        if (seal := _opened(key, row["sealed"])) is None:
            raise _refusal(f"{path} is not the key of the store beside it.")
        if settle and next_key is not None:
            following.unlink()
        return seal
    except OSError as error:
        raise _refusal(f"The key {path} cannot be used: {error.strerror or error}.") from error


def write_check(connection: sqlite3.Connection, seal: Seal) -> None:
    """Note in the store which key opens it."""
    sealed = seal.close({"check": _CHECK, "digests": seal.digests.hex()}, _CHECK)
    connection.execute("INSERT OR REPLACE INTO sealing (id, sealed) VALUES (1, ?)", (sealed,))


def is_key_of(key: bytes, connection: sqlite3.Connection) -> bool:
    """Return whether the key opens the store."""
    row = connection.execute("SELECT sealed FROM sealing").fetchone()
    return row is None or _opened(key, row["sealed"]) is not None


def _begun(connection: sqlite3.Connection, key: bytes) -> Seal:
    seal = Seal(key)
    write_check(connection, seal)
    return seal


def _opened(key: bytes, check: bytes) -> Seal | None:
    """Return the seal of a key if it is that of the store."""
    try:
        found = Seal(key).open(check, _CHECK)
    except SandboxError:
        return None
    return Seal(key, bytes.fromhex(found.get("digests", "")))


def read_key(path: Path) -> bytes | None:
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


def _made(path: Path) -> bytes:
    key = new_key()
    write_key(path, key)
    return key


def new_key() -> bytes:
    """Return a new key."""
    return secrets.token_bytes(KEY_BYTES)


def write_key(path: Path, key: bytes) -> None:
    """Write a key. It is whole on the disk before anything is encrypted with it. Raises OSError."""
    part = path.with_name(f"{path.name}.new")
    part.unlink(missing_ok=True)  # of a start that was killed
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{key.hex()}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    replace_file(part, path)


def replace_file(source: Path, target: Path) -> None:
    """Rename a file, so that a power cut does not undo it. Raises OSError."""
    source.replace(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _refusal(message: str) -> SandboxError:
    return SandboxError(ErrorCode.setup_failed, message, _WAY_BACK)
