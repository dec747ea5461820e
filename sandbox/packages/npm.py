"""Read the documents of an npm registry, and rewrite them for sandboxes. Pure."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from .links import Link, parse_integrity, valid_digests

SHORT_TYPE = "application/vnd.npm.install-v1+json"
FULL_TYPE = "application/json"
_NAME = re.compile(r"(@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*", re.IGNORECASE)


def package_name(text: str) -> str | None:
    """Return ``text`` if it is a valid package name, as in "left" or "@scope/left", else None."""
    return text if len(text) <= 214 and _NAME.fullmatch(text) else None


def registry_path(name: str) -> str:
    """Return the path of a package on a registry, with the slash of its scope escaped."""
    return quote(name, safe="@")


def parse_document(body: bytes, url: str) -> dict[str, Any]:
    """Parse a registry's document of a package and make its tarball URLs absolute. Raises ValueError for anything else."""
    document = json.loads(body)
    if not isinstance(document, dict) or not isinstance(document.get("versions"), dict):
        raise ValueError("it has no versions")  # noqa: TRY004  the content is wrong, not the argument
    kept = {}
    for version, described in document["versions"].items():
        dist = described.get("dist") if isinstance(described, dict) else None
        if not isinstance(dist, dict) or not isinstance(dist.get("tarball"), str):
            continue
        where = urljoin(url, dist["tarball"])
        if urlsplit(where).scheme in ("http", "https") and _file_name(where):
            kept[version] = {**described, "dist": {**dist, "tarball": where}}
    return {**document, "versions": kept}


def find_link(document: dict[str, Any], name: str) -> Link | None:
    """Return the tarball with that file name, or None if the document does not name it."""
    for described in document["versions"].values():
        dist = described["dist"]
        if _file_name(dist["tarball"]) == name:
            integrity = dist.get("integrity")
            digests = parse_integrity(integrity) if isinstance(integrity, str) else {}
            return Link(name, dist["tarball"], digests or valid_digests({"sha1": dist.get("shasum")}))
    return None


def write_document(document: dict[str, Any], folder: str) -> bytes:
    """Return the document with the URLs of its tarballs below ``folder``."""
    versions = {
        version: {**each, "dist": {**each["dist"], "tarball": f"{folder}/{quote(_file_name(each['dist']['tarball']))}"}}
        for version, each in document["versions"].items()
    }
    return json.dumps({**document, "versions": versions}, ensure_ascii=True).encode()


def _file_name(url: str) -> str:
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    return "" if "/" in name or name in (".", "..") else name
