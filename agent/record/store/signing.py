"""Signatures of runs: they tell the runs that this user's Gamebox recorded from those that somebody else wrote or changed.

The key lies in the state folder and never leaves this user's account. It signs the id and the hash of the last event of a run
with every event that is added. The chain of hashes carries this back to all events before it, the options of the run included.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from agent.own_files import SECRET, OwnFileError, read_own_file

from .chain import canonical

KEY_BYTES = 32


def state_folder() -> Path:
    """Return ``$XDG_STATE_HOME/gamebox``, below ~/.local/state where that is not set to an absolute path.

    A relative one would be looked up in the current folder: a repository could bring a key with it.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    return Path(base if Path(base).is_absolute() else Path.home() / ".local" / "state", "gamebox")


def own_key(*, make: bool = False) -> bytes | None:
    """Return this user's key; None if it is missing or cannot be trusted: a link, another user's, or readable by others.

    With ``make`` a missing key is made. Also returns None where the state folder cannot be written: runs are not signed then.
    """
    path = state_folder() / "runs.key"
    try:
        if make and not path.exists():
            _make(path)
        key = read_own_file(path, KEY_BYTES, SECRET)
    except (OSError, OwnFileError, RuntimeError):  # RuntimeError: there is no home folder
        return None
    return key if key is not None and len(key) == KEY_BYTES else None


def signature_of(key: bytes, run: str, ident: int, digest: str) -> str:
    """Return the signature of a run whose last event has this id and hash."""
    return hmac.new(key, canonical(["gamebox-run", run, ident, digest]).encode(), hashlib.sha256).hexdigest()


def is_signature(text: object, key: bytes, run: str, ident: int, digest: str) -> bool:
    """Return whether ``text`` is that signature."""
    return isinstance(text, str) and hmac.compare_digest(text.encode(), signature_of(key, run, ident, digest).encode())


def _make(path: Path) -> None:
    """Make the key. Two processes may do that at once: the first one wins, and nobody reads half a key."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".runs.key-{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)
    except FileExistsError:
        pass
    finally:
        partial.unlink(missing_ok=True)
