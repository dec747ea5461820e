"""Links to files that an index names, with the digests that their bytes must have."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import field

from sandbox.frozen import dataclass

# Digests by which a file can be stored, the most common first.
STRONG = ("sha256", "sha512", "sha384")
WEAK = ("sha1", "md5")
_SIZES = {"sha256": 64, "sha512": 128, "sha384": 96, "sha1": 40, "md5": 32}


@dataclass(frozen=True, slots=True)
class Link:
    """A file at ``url``. ``digests`` maps algorithms to hex digests, as the index gives them."""

    name: str
    url: str
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def strong(self) -> str | None:
        """The digest to store the file by, as in "sha256-0123...", or None if the index gives no strong one."""
        return next((f"{kind}-{self.digests[kind]}" for kind in STRONG if kind in self.digests), None)


def valid_digests(named: object) -> dict[str, str]:
    """Return the valid digests among an index's hashes, in lower-case hex."""
    if not isinstance(named, Mapping):
        return {}
    return {
        kind: str(named[kind]).lower()
        for kind, size in _SIZES.items()
        if isinstance(named.get(kind), str) and re.fullmatch(f"[0-9a-fA-F]{{{size}}}", str(named[kind]))
    }


def parse_integrity(text: str) -> dict[str, str]:
    """Return the digests in npm's ``integrity`` (Subresource Integrity: "sha512-BASE64 ...")."""
    found = {}
    for each in text.split():
        kind, _, value = each.partition("?")[0].partition("-")
        try:
            found[kind] = base64.b64decode(value, validate=True).hex()
        except (ValueError, binascii.Error):
            continue
    return valid_digests(found)
