"""Where the tokens of a server are stored. Without the SDK, so that runs without tokens do not import it for that."""

from __future__ import annotations

import hashlib
from pathlib import Path


def token_file(folder: Path, url: str) -> Path:
    """Return the file for the tokens of the server at ``url``, whether it exists or not."""
    return folder / "mcp" / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"
