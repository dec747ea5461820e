"""Pages of a Python index (PEP 503 as HTML, PEP 691 as JSON): read from an upstream, and written for sandboxes. Pure."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from .links import Link, digests_of

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
HTML_TYPE = "application/vnd.pypi.simple.v1+html"
ACCEPT = f"{JSON_TYPE}, {HTML_TYPE};q=0.2, text/html;q=0.1"
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", re.IGNORECASE)
_PASSED_ON = ("requires-python", "yanked", "size", "upload-time")

Files = list[dict[str, Any]]


def normal(name: str) -> str | None:
    """The name of a project as PEP 503 normalizes it; None for what is no name."""
    return re.sub(r"[-_.]+", "-", name).lower() if len(name) <= 200 and _NAME.fullmatch(name) else None


def files_of(body: bytes, kind: str, url: str) -> Files:
    """The files that a page names, as PEP 691 has them; ``url`` is where the page stands. Raises ValueError for what is no page."""
    if kind.partition(";")[0].strip().endswith("json"):
        document = json.loads(body)
        if not isinstance(document, dict) or not isinstance(document.get("files"), list):
            raise ValueError("it has no list of files")
        found = [one for one in document["files"] if isinstance(one, dict)]
    else:
        parser = _Anchors()
        parser.feed(body.decode("utf-8", "replace"))
        parser.close()
        found, url = parser.files, urljoin(url, parser.base)
    return [kept for one in found if (kept := _kept(one, url)) is not None]


def _kept(one: dict[str, Any], base: str) -> dict[str, Any] | None:
    """An entry with what is understood of it; None for one that cannot be served."""
    name, where = one.get("filename"), one.get("url")
    if not isinstance(name, str) or not isinstance(where, str) or not name or "/" in name or name in (".", ".."):
        return None
    where = urljoin(base, where)
    if urlsplit(where).scheme not in ("http", "https"):
        return None
    kept: dict[str, Any] = {"filename": name, "url": where.partition("#")[0], "hashes": digests_of(one.get("hashes"))}
    kept |= {key: one[key] for key in _PASSED_ON if one.get(key) not in (None, False)}
    metadata = one.get("core-metadata", one.get("dist-info-metadata"))
    if metadata:
        kept["core-metadata"] = digests_of(metadata) or True
    return kept


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.files: Files = []
        self.base = ""
        self._open: dict[str, Any] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See ``HTMLParser``."""
        known = {name: value or "" for name, value in attrs}
        if tag == "base" and known.get("href"):
            self.base = known["href"]
        if tag != "a" or not known.get("href"):
            return
        where, _, fragment = known["href"].partition("#")
        self._open = {
            "url": where, "hashes": _hashes(fragment), "requires-python": known.get("data-requires-python"),
            "yanked": (known["data-yanked"] or True) if "data-yanked" in known else None,
            "filename": unquote(urlsplit(where).path.rpartition("/")[2]),
        }  # fmt: skip
        told = known.get("data-core-metadata", known.get("data-dist-info-metadata"))
        if told is not None and told != "false":
            self._open["core-metadata"] = _hashes(told) or True
        self.files.append(self._open)


def _hashes(text: str) -> dict[str, str]:
    kind, _, value = text.partition("=")
    return digests_of({kind: value})


def link_of(files: Files, name: str) -> Link | None:
    """The file of that name, or the metadata beside it ("NAME.metadata", PEP 658); None for what the page does not name."""
    for one in files:
        if one["filename"] == name:
            return Link(name, one["url"], one["hashes"])
        metadata = one.get("core-metadata")
        if metadata and name == f"{one['filename']}.metadata":
            return Link(name, f"{one['url']}.metadata", metadata if isinstance(metadata, dict) else {})
    return None


def as_json(project: str, files: Files, folder: str) -> bytes:
    """The page for a sandbox; files stand below ``folder``."""
    served = []
    for one in files:
        metadata = one.get("core-metadata")
        extra = {} if metadata is None else {"core-metadata": metadata, "dist-info-metadata": metadata}
        served.append({**one, "url": f"{folder}/{quote(one['filename'])}", **extra})
    page = {"meta": {"api-version": "1.0"}, "name": project, "files": served}
    return json.dumps(page, ensure_ascii=True).encode()


def as_html(project: str, files: Files, folder: str) -> bytes:
    """The same as HTML."""
    lines = []
    for one in files:
        digest = next((f"#{kind}={value}" for kind, value in one["hashes"].items()), "")
        told = {"href": f"{folder}/{quote(one['filename'])}{digest}"}
        if "requires-python" in one:
            told["data-requires-python"] = str(one["requires-python"])
        if "yanked" in one:
            told["data-yanked"] = "" if one["yanked"] is True else str(one["yanked"])
        if metadata := one.get("core-metadata"):
            value = next((f"{k}={v}" for k, v in metadata.items()), "true") if isinstance(metadata, dict) else "true"
            told |= {"data-core-metadata": value, "data-dist-info-metadata": value}
        attributes = " ".join(f'{name}="{html.escape(value)}"' for name, value in told.items())
        lines.append(f"<a {attributes}>{html.escape(one['filename'])}</a><br>")
    head = (
        f'<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.0"><title>{project}</title></head>'
    )
    return f"{head}<body>\n{chr(10).join(lines)}\n</body></html>\n".encode()
