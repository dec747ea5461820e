"""Write changes of binary files in the format of ``git diff --binary``, which ``git apply`` accepts.

The format is that of git's ``apply.c`` and ``diff.c``: both contents in full ("literal"), deflated, in lines of at most 52 bytes,
each with its length and then the bytes in base 85.
"""

from __future__ import annotations

import base64
import hashlib
import zlib

_LINE_BYTES = 52


def blob_name(data: bytes | None) -> str:
    """Return the object name that git gives ``data``; all zeros for None, a missing file."""
    if data is None:
        return "0" * 40
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def binary_patch(before: bytes | None, after: bytes | None) -> str:
    """Return the patch from ``before`` to ``after``, which also applies in reverse. None means a missing file."""
    return f"GIT binary patch\n{_literal(after or b'')}\n{_literal(before or b'')}\n"


def _literal(data: bytes) -> str:
    deflated = zlib.compress(data)
    lines = [f"literal {len(data)}\n"]
    for start in range(0, len(deflated), _LINE_BYTES):
        piece = deflated[start : start + _LINE_BYTES]
        length = chr(ord("A") + len(piece) - 1 if len(piece) <= 26 else ord("a") + len(piece) - 27)
        lines.append(f"{length}{base64.b85encode(piece, pad=True).decode()}\n")
    return "".join(lines)
