"""Files of the sandbox as resources, and what is known of the sandbox as a whole."""

from __future__ import annotations

import base64
import json
import mimetypes
from urllib.parse import unquote

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    BlobResourceContents,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from sandbox.errors import SandboxError
from sandbox.pipe.watching import CancelToken

from .answers import clean
from .hints import hint_for_tools
from .place import Place, too_large

MOST_BYTES = 1 << 20
SANDBOX, CHANGES, FILES = "gamebox://sandbox", "gamebox://changes.patch", "gamebox://files/"
MOST_URI_CHARS = 16_384

RESOURCES = [
    Resource(
        uri=SANDBOX,
        name="sandbox",
        description="What this sandbox is, and what is left of its limits.",
        mime_type="application/json",
    ),
    Resource(
        uri=CHANGES,
        name="changes",
        description="Changes of the workspace since the start of the sandbox, as a patch for git apply.",
        mime_type="text/x-diff",
    ),
]
TEMPLATES = [
    ResourceTemplate(
        uri_template=f"{FILES}{{+path}}",
        name="files",
        description="A file, by its path: relative to the workspace, or absolute with a second slash. A folder is listed.",
    )
]


async def read_resource(place: Place, uri: str) -> ReadResourceResult:
    """Return what is at an address. Raises MCPError."""
    try:
        return await _read(place, uri)
    except SandboxError as error:
        raise MCPError(INVALID_PARAMS, clean(f"{error.message} {hint_for_tools(error.hint)}".strip())) from error


async def _read(place: Place, uri: str) -> ReadResourceResult:
    if uri == SANDBOX:
        text = json.dumps(clean(dict(await place.describe())), ensure_ascii=False, indent=1)
        return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type="application/json", text=text)])
    if uri == CHANGES:
        patch = (await place.patch()).unwrap().patch
        if len(patch) > MOST_BYTES:
            raise too_large("changes.patch", MOST_BYTES)
        return _contents(uri, patch, "text/x-diff")
    path = unquote(uri.removeprefix(FILES), errors="surrogateescape")
    if not uri.startswith(FILES) or not path or len(uri) > MOST_URI_CHARS:
        raise MCPError(INVALID_PARAMS, f"There is no resource {clean(uri)[:300]!r}. Use {FILES}PATH, {SANDBOX} or {CHANGES}.")
    found = (await place.execute("stat", {"path": path}, CancelToken())).unwrap()
    if found.type == "directory":
        listed = (await place.execute("list", {"path": path}, CancelToken())).unwrap()
        return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type="text/plain", text=clean(listed.to_text()))])
    if found.size_bytes > MOST_BYTES:
        raise too_large(path, MOST_BYTES)
    return _contents(uri, await place.fetch(path, MOST_BYTES), mimetypes.guess_type(path)[0])


def _contents(uri: str, data: bytes, kind: str | None) -> ReadResourceResult:
    """Return bytes as text if they are UTF-8, else as a blob."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        blob = base64.b64encode(data).decode()
        return ReadResourceResult(
            contents=[BlobResourceContents(uri=uri, mime_type=kind or "application/octet-stream", blob=blob)]
        )
    return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=kind or "text/plain", text=text)])
