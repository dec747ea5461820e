"""Files that an index names, and how their bytes are told from others."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# Those that can stand for the bytes, the best known first.
STRONG = ("sha256", "sha512", "sha384")
WEAK = ("sha1", "md5")
_SIZES = {"sha256": 64, "sha512": 128, "sha384": 96, "sha1": 40, "md5": 32}


@dataclass(frozen=True, slots=True)
class Link:
    """A file at ``url``; ``digests`` are hex by algorithm, as its index names them."""

    name: str
    url: str
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def strong(self) -> str | None:
        """The digest to keep it by, as in "sha256-0123..."; None where the index names none."""
        return next((f"{one}-{self.digests[one]}" for one in STRONG if one in self.digests), None)


def digests_of(named: object) -> dict[str, str]:
    """What of an index's hashes is known here, in lower-case hex."""
    if not isinstance(named, Mapping):
        return {}
    return {
        kind: str(named[kind]).lower()
        for kind, size in _SIZES.items()
        if isinstance(named.get(kind), str) and re.fullmatch(f"[0-9a-fA-F]{{{size}}}", str(named[kind]))
    }


def digests_of_integrity(text: str) -> dict[str, str]:
    """The same of npm's ``integrity`` (Subresource Integrity: "sha512-BASE64 ...")."""
    found = {}
    for each in text.split():
        kind, _, value = each.partition("?")[0].partition("-")
        try:
            found[kind] = base64.b64decode(value, validate=True).hex()
        except (ValueError, binascii.Error):
            continue
    return digests_of(found)
