"""Read the pages of a Python index (PEP 503 as HTML, PEP 691 as JSON), and write them for sandboxes. Pure."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from .links import Link, valid_digests

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
HTML_TYPE = "application/vnd.pypi.simple.v1+html"
ACCEPT = f"{JSON_TYPE}, {HTML_TYPE};q=0.2, text/html;q=0.1"
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", re.IGNORECASE)
_KEPT_FIELDS = ("requires-python", "yanked", "size", "upload-time")

Files = list[dict[str, Any]]


def normalize(name: str) -> str | None:
    """Return a project name normalized as in PEP 503, or None if it is invalid."""
    return re.sub(r"[-_.]+", "-", name).lower() if len(name) <= 200 and _NAME.fullmatch(name) else None


def parse_page(body: bytes, kind: str, url: str) -> Files:
    """Return the files that a page names, as in PEP 691; ``url`` is the page's own. Raises ValueError if it is not such a page."""
    if kind.partition(";")[0].strip().endswith("json"):
        document = json.loads(body)
        if not isinstance(document, dict) or not isinstance(document.get("files"), list):
            raise ValueError("it has no list of files")
        found = [entry for entry in document["files"] if isinstance(entry, dict)]
    else:
        parser = _Anchors()
        parser.feed(body.decode("utf-8", "replace"))
        parser.close()
        found, url = parser.files, urljoin(url, parser.base)
    return [file for entry in found if (file := _read_entry(entry, url)) is not None]


def _read_entry(entry: dict[str, Any], base: str) -> dict[str, Any] | None:
    """Return the known fields of an entry, or None if it cannot be served."""
    name, where = entry.get("filename"), entry.get("url")
    if not isinstance(name, str) or not isinstance(where, str) or not name or "/" in name or name in (".", ".."):
        return None
    where = urljoin(base, where)
    if urlsplit(where).scheme not in ("http", "https"):
        return None
    file: dict[str, Any] = {
        "filename": name,
        "url": where.partition("#")[0],
        "hashes": valid_digests(entry.get("hashes")),
    }
    file |= {key: entry[key] for key in _KEPT_FIELDS if entry.get(key) not in (None, False)}
    metadata = entry.get("core-metadata", entry.get("dist-info-metadata"))
    if metadata:
        file["core-metadata"] = valid_digests(metadata) or True
    return file


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.files: Files = []
        self.base = ""
        self._open: dict[str, Any] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        if tag == "base" and known.get("href"):
            self.base = known["href"]
        if tag != "a" or not known.get("href"):
            return
        where, _, fragment = known["href"].partition("#")
        self._open = {
            "url": where,
            "hashes": _hashes(fragment),
            "requires-python": known.get("data-requires-python"),
            "yanked": (known["data-yanked"] or True) if "data-yanked" in known else None,
            "filename": unquote(urlsplit(where).path.rpartition("/")[2]),
        }
        metadata = known.get("data-core-metadata", known.get("data-dist-info-metadata"))
        if metadata is not None and metadata != "false":
            self._open["core-metadata"] = _hashes(metadata) or True
        self.files.append(self._open)


def _hashes(text: str) -> dict[str, str]:
    kind, _, value = text.partition("=")
    return valid_digests({kind: value})


def find_link(files: Files, name: str) -> Link | None:
    """Return the file of that name, or the metadata beside it ("NAME.metadata", PEP 658), or None."""
    for file in files:
        if file["filename"] == name:
            return Link(name, file["url"], file["hashes"])
        metadata = file.get("core-metadata")
        if metadata and name == f"{file['filename']}.metadata":
            return Link(name, f"{file['url']}.metadata", metadata if isinstance(metadata, dict) else {})
    return None


def as_json(project: str, files: Files, folder: str) -> bytes:
    """Return the page for a sandbox as JSON, with its files below ``folder``."""
    served = []
    for file in files:
        metadata = file.get("core-metadata")
        extra = {} if metadata is None else {"core-metadata": metadata, "dist-info-metadata": metadata}
        served.append({**file, "url": f"{folder}/{quote(file['filename'])}", **extra})
    page = {"meta": {"api-version": "1.0"}, "name": project, "files": served}
    return json.dumps(page, ensure_ascii=True).encode()


def as_html(project: str, files: Files, folder: str) -> bytes:
    """Return the page for a sandbox as HTML, with its files below ``folder``."""
    lines = []
    for file in files:
        digest = next((f"#{kind}={value}" for kind, value in file["hashes"].items()), "")
        attributes = {"href": f"{folder}/{quote(file['filename'])}{digest}"}
        if "requires-python" in file:
            attributes["data-requires-python"] = str(file["requires-python"])
        if "yanked" in file:
            attributes["data-yanked"] = "" if file["yanked"] is True else str(file["yanked"])
        if metadata := file.get("core-metadata"):
            value = next((f"{k}={v}" for k, v in metadata.items()), "true") if isinstance(metadata, dict) else "true"
            attributes |= {"data-core-metadata": value, "data-dist-info-metadata": value}
        written = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items())
        lines.append(f"<a {written}>{html.escape(file['filename'])}</a><br>")
    head = (
        f'<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.0"><title>{project}</title></head>'
    )
    return f"{head}<body>\n{chr(10).join(lines)}\n</body></html>\n".encode()
