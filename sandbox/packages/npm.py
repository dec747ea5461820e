"""Documents of an npm registry: which package is asked for, where its tarballs are, and the document for sandboxes. Pure."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from .links import Link, digests_of, digests_of_integrity

SHORT_TYPE = "application/vnd.npm.install-v1+json"
FULL_TYPE = "application/json"
_NAME = re.compile(r"(@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*", re.IGNORECASE)


def named(text: str) -> str | None:
    """The name of a package, as in "left" or "@scope/left"; None for what is none."""
    return text if len(text) <= 214 and _NAME.fullmatch(text) else None


def path_of(name: str) -> str:
    """Its path on a registry: the slash of a scope is escaped."""
    return quote(name, safe="@")


def document_of(body: bytes, url: str) -> dict[str, Any]:
    """What a registry says of a package, with tarballs by whole URLs. Raises ValueError for what is no such document."""
    document = json.loads(body)
    if not isinstance(document, dict) or not isinstance(document.get("versions"), dict):
        raise ValueError("it has no versions")  # noqa: TRY004  what it holds is wrong, not what was passed
    kept = {}
    for version, described in document["versions"].items():
        dist = described.get("dist") if isinstance(described, dict) else None
        if not isinstance(dist, dict) or not isinstance(dist.get("tarball"), str):
            continue
        where = urljoin(url, dist["tarball"])
        if urlsplit(where).scheme in ("http", "https") and _file_name(where):
            kept[version] = {**described, "dist": {**dist, "tarball": where}}
    return {**document, "versions": kept}


def link_of(document: dict[str, Any], name: str) -> Link | None:
    """The tarball of that file name; None for what the document does not name."""
    for described in document["versions"].values():
        dist = described["dist"]
        if _file_name(dist["tarball"]) == name:
            integrity = dist.get("integrity")
            digests = digests_of_integrity(integrity) if isinstance(integrity, str) else {}
            return Link(name, dist["tarball"], digests or digests_of({"sha1": dist.get("shasum")}))
    return None


def for_sandbox(document: dict[str, Any], folder: str) -> bytes:
    """The document with its tarballs below the URL ``folder``."""
    versions = {
        version: {**one, "dist": {**one["dist"], "tarball": f"{folder}/{quote(_file_name(one['dist']['tarball']))}"}}
        for version, one in document["versions"].items()
    }
    return json.dumps({**document, "versions": versions}, ensure_ascii=True).encode()


def _file_name(url: str) -> str:
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    return "" if "/" in name or name in (".", "..") else name
