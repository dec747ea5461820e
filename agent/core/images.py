"""Images in results and messages: recognized, bounded, and described in words for models that cannot see them.

A result holds an image as the content block of MCP does: ``{"type": "image", "mimeType": "image/png", "data": "<base64>"}``,
at any depth. A prompt holds it as a part of a message:
``{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}``.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterator, Mapping
from typing import Any

# Providers take 5 MB in base64; Anthropic refuses the whole prompt beyond it.
MAX_IMAGE_BYTES = 3_500_000
MAX_IMAGES_PER_RESULT = 8
MAX_DEPTH = 60
# What providers count for a screenshot, about.
IMAGE_TOKENS = 1600
_MAGIC = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8", "image/webp": b"RIFF"}


def is_image(value: Any) -> bool:
    """Whether ``value`` is an image of a result or a message, valid or not."""
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    return (kind == "image" and isinstance(value.get("data"), str)) or (kind == "image_url" and "image_url" in value)


def image_part(image: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an image as a part of a prompt's message; None for one that no provider takes.

    The data must be base64 of a PNG, JPEG, GIF or WebP of at most ``MAX_IMAGE_BYTES``; the bytes decide the type. An address is
    never accepted: clients of providers would fetch it from this host, and the result may come from a hostile page or file.
    """
    data = _data_of(image)
    if data is None or len(data) > MAX_IMAGE_BYTES * 4 // 3 + 4:
        return None
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    kind = kind_of(content)
    if kind is None or len(content) > MAX_IMAGE_BYTES:
        return None
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}


def image_block(content: bytes) -> dict[str, Any]:
    """Return the bytes of an image as a block for a result. Raises ValueError for another format."""
    kind = kind_of(content)
    if kind is None:
        raise ValueError("These bytes are not a PNG, JPEG, GIF or WebP image.")
    return {"type": "image", "mimeType": kind, "data": base64.b64encode(content).decode()}


def kind_of(content: bytes) -> str | None:
    """Return the MIME type that the bytes begin like; None for another format."""
    kind = next((kind for kind, magic in _MAGIC.items() if content.startswith(magic)), None)
    return None if kind == "image/webp" and content[8:12] != b"WEBP" else kind


def has_images(value: Any) -> bool:
    """Return whether JSON-ready data holds an image; fast, since every prompt asks it for each message."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if "type" in node and is_image(node):
                return True
            node = node.values()
        elif not isinstance(node, list | tuple):
            continue
        waiting += [child for child in node if isinstance(child, dict | list | tuple)]
    return False


def images_in(value: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yield the images in JSON-ready data, in order; nothing deeper than ``MAX_DEPTH``."""
    if is_image(value):
        yield value
    elif depth < MAX_DEPTH and isinstance(value, dict | list | tuple):
        for child in value.values() if isinstance(value, dict) else value:
            yield from images_in(child, depth + 1)


def parts_of(value: Any) -> list[dict[str, Any]]:
    """Return the images in JSON-ready data as parts of a message: the first ``MAX_IMAGES_PER_RESULT`` valid ones."""
    found: list[dict[str, Any]] = []
    for block in images_in(value) if has_images(value) else ():
        part = image_part(block)
        if part is not None:
            found.append(part)
        if len(found) == MAX_IMAGES_PER_RESULT:
            break
    return found


def without_images(value: Any, depth: int = 0) -> Any:
    """Return JSON-ready data with a description in place of each image; ``value`` itself if it holds none."""
    if depth == 0 and not has_images(value):
        return value
    if is_image(value):
        return described(value)
    if depth < MAX_DEPTH and isinstance(value, dict):
        changed = {key: without_images(child, depth + 1) for key, child in value.items()}
        return changed if any(changed[key] is not child for key, child in value.items()) else value
    if depth < MAX_DEPTH and isinstance(value, list | tuple):
        items = [without_images(child, depth + 1) for child in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def with_few_images(value: Any) -> Any:
    """Return JSON-ready data in which a description takes the place of each image after the first ``MAX_IMAGES_PER_RESULT``."""
    if not has_images(value) or sum(1 for _ in images_in(value)) <= MAX_IMAGES_PER_RESULT:
        return value
    left = [MAX_IMAGES_PER_RESULT]

    def kept(value: Any) -> Any:
        if is_image(value):
            left[0] -= 1
            return value if left[0] >= 0 else described(value)
        if isinstance(value, dict):
            return {key: kept(child) for key, child in value.items()}
        return [kept(child) for child in value] if isinstance(value, list) else value

    return kept(value)


def described(image: Mapping[str, Any]) -> str:
    """Return an image in words: type, size in pixels if the header says it, and bytes."""
    data = _data_of(image)
    if data is None:
        return "[image: only an address, which is not opened]"
    try:
        head = base64.b64decode(data[:65_536][: len(data[:65_536]) // 4 * 4], validate=True)
    except (binascii.Error, ValueError):
        return "[image: its data is not base64]"
    kind = kind_of(head)
    if kind is None:
        return "[image: its format is not PNG, JPEG, GIF or WebP]"
    size = _pixels(head, kind)
    pixels = f", {size[0]}×{size[1]} pixels" if size else ""
    large = "" if len(data) * 3 // 4 <= MAX_IMAGE_BYTES else ", too large to show"
    return f"[image: {kind}{pixels}, {len(data) * 3 // 4:,} bytes{large}]"


def _data_of(image: Mapping[str, Any]) -> str | None:
    """The base64 of an image; None for one that is only an address."""
    if image["type"] == "image":
        return str(image["data"])
    inner = image["image_url"]
    head, mark, data = str(inner.get("url") if isinstance(inner, Mapping) else inner).partition(";base64,")
    return data if mark and head.startswith("data:") else None


def _pixels(head: bytes, kind: str) -> tuple[int, int] | None:
    try:
        if kind == "image/png":
            return struct.unpack(">II", head[16:24])
        if kind == "image/gif":
            return struct.unpack("<HH", head[6:10])
        return _jpeg_pixels(head) if kind == "image/jpeg" else None
    except struct.error:
        return None


def _jpeg_pixels(head: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker, length = head[at + 1], int.from_bytes(head[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return width, height
        at += 2 + max(length, 2)
    return None
