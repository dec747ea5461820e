"""Pages in the browser: ``browse`` with its scripts, ``browse_interact`` and ``screenshot``. In workers."""

from __future__ import annotations

import base64
import binascii
import os
import time

from ..files.replacement import Replacement
from ..files.roots import readable_roots_of, roots_of
from ..files.transfer import chunks_of
from ..protocol.constants import REFUSED
from ..protocol.faults import Fault
from ..protocol.page_urls import normalize_url
from . import checked
from .browser import Browser
from .driver.chromium import find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..loop.context import StateCall

MOST_FILE_BYTES = 16 << 20  # of one upload or download; input of the driver is bounded, so files go in pieces
PIECE_BYTES = 1 << 17
FILE_SECONDS = 10.0
PICTURE_BYTES = 20 << 20
PNG = b"\x89PNG\r\n\x1a\n"
ITEMS = 50
FAULTS = {
    "browser_failed",
    "connection_failed",
    "dialog_open",
    "element_not_found",
    "element_not_usable",
    "script_failed",
    "timeout",
    "too_many_redirects",
}
TEXTS = (
    "url",
    "problem",
    "location",
    "target",
    "by",
    "text",
    "options",
    "value",
    "key",
    "format",
    "tab",
    "tabs",
    "type",
    "message",
)
NUMBERS = ("redirects", "limit", "seconds", "pages")
FLAGS = ("refused", "reference", "waited", "crashed", "closed")


def open_page(call: StateCall) -> dict[str, Any]:
    """Open a page in the browser. Returns the result of ``browse``, or {"download": True} for what the browser has no text of."""
    args = call.args
    url = _requested(args["url"])
    request = {
        "do": "open",
        "url": url,
        "offset": args.get("offset", 0),
        "max_chars": args.get("max_chars", 20000),
        "outline_chars": args.get("max_chars", 20000),
        "stay": args.get("offset", 0) > 0,
    }
    answer = _ask(call, request, float(args.get("timeout_seconds", 30)))
    if "fault" in answer:
        raise _fault_of(call, answer, lambda found: _page_result(found, args), url)
    found: dict[str, Any] = answer["result"]
    if isinstance(found.get("download"), dict) or found.get("content_type") == "application/pdf":  # its viewer shows a picture
        return {"download": True}
    result: dict[str, Any] = _checked(lambda: _page_result(found, args))
    return result


def has_browser(call: StateCall) -> bool:
    """Return whether pages can be opened in a browser here.

    Without a sandbox around it, Chromium would run hostile pages as the user of the host: there it is not used.
    """
    return bool(call.processes.isolated) and find_program() is not None


def interact(call: StateCall) -> dict[str, Any]:
    """Handle ``browse_interact``. Raises Fault, with the steps that were carried out in its result."""
    args = call.args
    steps: list[dict[str, Any]] = []
    seconds = float(args.get("timeout_seconds", 30))
    until = time.monotonic() + seconds
    for number, step in enumerate(args["steps"]):
        made = {name: step.get(name) for name in ("action", "target", "value") if step.get(name) is not None}
        if step.get("action") == "goto":
            made["value"] = _requested(str(step.get("value")))
        elif step.get("action") == "download":
            roots_of(call.place).display(str(step["value"]))
            if str(step.get("target")).startswith(("http://", "https://")):
                made["target"] = _requested(str(step["target"]))
        elif step.get("action") == "upload":
            made["file"] = _send_file(call, str(step["value"]), number)
        steps.append(made)
    request = {"do": "interact", "steps": steps, "outline_chars": args.get("max_chars", 8000)}
    answer = _ask(call, request, max(1.0, until - time.monotonic()))
    if "fault" in answer:
        raise _fault_of(call, answer, _interact_result, "")
    result: dict[str, Any] = _checked(lambda: _interact_result(answer["result"]))
    for step, done in zip(args["steps"], result["steps"], strict=False):
        if step.get("action") == "download" and done["size_bytes"] is not None:
            done["path"] = _fetch_file(call, str(step["value"]), done["size_bytes"])
    return result


def screenshot(call: StateCall) -> tuple[dict[str, Any], bytes]:
    """Handle ``screenshot``: put the picture into a file, and return it as well."""
    args = call.args
    seconds = float(args.get("timeout_seconds", 30))
    request = {"do": "screenshot", "target": args.get("target"), "full": args.get("full", False)}
    answer = _ask(call, request, seconds)
    if "fault" in answer:
        raise _fault_of(call, answer, lambda _: None, "")
    found: dict[str, Any] = answer["result"]

    def check() -> tuple[int, str, bool]:
        size = checked.number(found, "size_bytes", 24, PICTURE_BYTES)
        return size, checked.string(found, "final_url", checked.URL_CHARS), found["cut"] is True

    size_bytes, url, cut = _checked(check)
    content = b"".join(_pieces_of(call, found, {"do": "send_picture", "picture": found.get("picture")}, size_bytes))
    if not content.startswith(PNG):
        raise _unusable("it is not a picture")
    path = args.get("path") or _picture_path(call)
    with Replacement(call.place, path) as new:
        new.write(content)
        new.commit()
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    size = {"width": width, "height": height, "size_bytes": len(content)}
    return {"path": new.displayed, "final_url": url, **size, "truncated": cut}, content


def _picture_path(call: StateCall) -> str:
    """Return a new path for a picture, outside the workspace if there is such a place."""
    folder = "/tmp" if b"/tmp" in call.place.roots else ""
    browser = _browser_of(call)
    browser.pictures += 1
    return os.path.join(folder, f"screenshot-{browser.pictures}.png")


def _requested(url: str) -> str:
    try:
        return normalize_url(url) + _fragment(url)
    except ValueError as error:
        raise Fault("invalid_url", url=url, problem=str(error)) from None


def _fragment(url: str) -> str:
    """Return the fragment, by which the scripts of many pages choose what they show."""
    _, mark, rest = url.strip().partition("#")
    return mark + "".join(c if "!" <= c <= "~" else "%20" for c in rest[:2000]) if mark else ""


def _browser_of(call: StateCall) -> Browser:
    found: list[Browser] = []

    def look() -> None:
        if call.processes.browser is None:
            call.processes.browser = Browser(call.processes)
        found.append(call.processes.browser)

    call.hand_over(look)
    return found[0]


def _ask(call: StateCall, request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return what the driver answers. Raises Fault, ``browser_not_available`` where the image has no Chromium."""
    if not has_browser(call):
        raise Fault("browser_not_available", isolated=call.processes.isolated)
    browser = _browser_of(call)
    answer: dict[str, Any] = call.await_report(lambda report: browser.ask(request, seconds, report))
    if "fault" not in answer and not isinstance(answer.get("result"), dict):
        raise _unusable("it has no result")
    return answer


def _unusable(problem: str) -> Fault:
    return Fault("browser_failed", failed=f"its answer cannot be used: {problem[:200]}")


def _checked(check: Any) -> Any:
    try:
        return check()
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise _unusable(str(error)) from None


def _fault_of(call: StateCall, answer: dict[str, Any], check: Any, url: str) -> Fault:
    """Return the fault that the driver reports, with the result as far as there is one. Raises Fault if it cannot be used."""
    from .browse import own_server, refusal_of

    code, reported, result = answer["fault"], answer.get("fields"), answer.get("result")
    if not isinstance(code, str) or code not in FAULTS or not isinstance(reported, dict):
        return _unusable("it is no known fault")
    fields: dict[str, Any] = {"browser": True}
    for name in TEXTS:
        if isinstance(reported.get(name), str):
            fields[name] = checked.unicode(reported[name][:500])
    for name in NUMBERS:
        if isinstance(reported.get(name), int | float) and not isinstance(reported.get(name), bool):
            fields[name] = reported[name]
    for name in FLAGS:
        fields[name] = reported.get(name) is True
    if code == "timeout":
        fields["seconds"] = float(call.args.get("timeout_seconds", 30))
    if code == "connection_failed":
        asked = str(fields.get("url") or url)
        why = refusal_of(call, asked, certain=bool(fields["refused"]))
        if why is not None:
            code, fields["problem"] = "network_denied", REFUSED + why
        else:
            fields["problem"] = _network_words(str(fields.get("problem")))
            fields |= own_server(call, asked)
    known = _checked(lambda: check(result)) if isinstance(result, dict) else None
    effects = "partial" if isinstance(known, dict) and known.get("steps") else "none"
    return Fault(code, result=known, effects=effects, **fields)


def _network_words(problem: str) -> str:
    """Return Chromium's name of a network error as words."""
    known = {
        "net::ERR_CONNECTION_REFUSED": "Connection refused",
        "net::ERR_EMPTY_RESPONSE": "the server closed the connection without an answer",
        "net::ERR_NAME_NOT_RESOLVED": "the host name was not found",
        "net::ERR_UNSAFE_PORT": "the browser opens no page at this port (try run with curl)",
        "net::ERR_TUNNEL_CONNECTION_FAILED": "the sandbox's proxy could not connect to it",
    }
    return known.get(problem, problem.removeprefix("net::"))


# --- results ---------------------------------------------------------------------------------------------------------------


def _state(found: dict[str, Any]) -> dict[str, Any]:
    """Return what every answer tells of a page."""
    dialog = found.get("dialog")
    return {
        "final_url": checked.string(found, "final_url", checked.URL_CHARS),
        "status": checked.number(found, "status", 100, 999) if found.get("status") is not None else None,
        "title": checked.optional(found, "title", 1000),
        "outline": checked.optional(found, "outline", 200_000),
        "outline_truncated": found.get("outline_cut") is True,
        "console": checked.items(found, "console", ITEMS, _message),
        "failed_requests": checked.items(found, "failed", ITEMS, _failed_request),
        "dialogs": checked.items(found, "dialogs", ITEMS, _dialog),
        "dialog": _dialog(dialog) if isinstance(dialog, dict) else None,
        "tabs": checked.items(found, "tabs", ITEMS, _tab),
        "complete": found.get("complete") is not False,
    }


def _page_result(found: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    most, offset = args.get("max_chars", 20000), args.get("offset", 0)
    text = checked.optional(found, "text", most)
    total = checked.number(found, "total_chars", 0, 1 << 40) if found.get("total_chars") is not None else len(text)
    return {
        **_state(found),
        "url": args["url"],
        "browser": True,
        "content_type": checked.optional(found, "content_type", 200),
        "text": text,
        "links": checked.items(found, "links", 200, checked.link),
        "offset": offset,
        "total_chars": total,
        "truncated": found.get("too_large") is True or offset + len(text) < total,
        "redirects": checked.texts(found, "redirects", 10, checked.URL_CHARS),
    }


def _interact_result(found: dict[str, Any]) -> dict[str, Any]:
    steps = checked.items(found, "steps", ITEMS, _step)
    if "final_url" not in found:  # nothing could be had of the page
        found = {**found, "final_url": ""}
    return {**_state(found), "steps": steps}


def _step(step: dict[str, Any]) -> dict[str, Any]:
    download = step.get("download")
    size = None
    if isinstance(download, dict):
        size = checked.number(download, "size_bytes", 0, MOST_FILE_BYTES)
    return {
        "action": checked.string(step, "action", 20),
        "what": checked.optional(step, "what", 300),
        "changes": checked.texts(step, "changes", 60, 300),
        "value": checked.string(step, "value", 20_000) if step.get("value") is not None else None,
        "path": None,
        "size_bytes": size,
    }


def _message(found: dict[str, Any]) -> dict[str, Any]:
    level = found["level"] if found["level"] in ("error", "warning", "log") else "log"
    return {"level": level, "text": checked.string(found, "text", 1000), "place": checked.optional(found, "place", 300)}


def _failed_request(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "method": checked.string(found, "method", 20),
        "url": checked.string(found, "url", 2048),
        "problem": checked.string(found, "problem", 200),
    }


def _dialog(found: dict[str, Any]) -> dict[str, Any]:
    return {"type": checked.string(found, "type", 20), "message": checked.string(found, "message", 1000)}


def _tab(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "number": checked.number(found, "number", 1, 1 << 30),
        "url": checked.string(found, "url", 2048),
        "current": found["current"] is True,
    }


# --- files -----------------------------------------------------------------------------------------------------------------


def _send_file(call: StateCall, path: str, number: int) -> str:
    """Give the driver a file of the sandbox's user. Returns the name by which it has it."""
    roots = readable_roots_of(call.place)
    fd, status = roots.open_regular(path)
    try:
        if status.st_size > MOST_FILE_BYTES:
            raise Fault("file_too_large", path=roots.display(path), size_bytes=status.st_size, limit=MOST_FILE_BYTES)
        name = f"{number}-{os.path.basename(path)}"[-200:]
        for at, piece in enumerate(_pieces(fd)):
            data = base64.b64encode(piece).decode()
            answer = _ask(call, {"do": "receive", "name": name, "first": at == 0, "data": data}, FILE_SECONDS)
            if "fault" in answer:
                raise _unusable("it does not take a file")
        return name
    except OSError as error:
        raise roots.fault_for(error, path) from None
    finally:
        os.close(fd)


def _pieces(fd: int) -> Iterator[bytes]:
    """Yield a file in pieces; an empty one for an empty file."""
    piece = b""
    for chunk in chunks_of(fd, MOST_FILE_BYTES):
        for at in range(0, len(chunk), PIECE_BYTES):
            piece = chunk[at : at + PIECE_BYTES]
            yield piece
    if not piece:
        yield b""


def _fetch_file(call: StateCall, path: str, size: int) -> str:
    """Write what the page downloaded into a file of the sandbox's user. Returns its path."""
    with Replacement(call.place, path) as new:
        for piece in _pieces_of(call, None, {"do": "send"}, size):
            new.write(piece)
        new.commit()
    return new.displayed


def _pieces_of(call: StateCall, first: Any, request: dict[str, Any], size: int) -> Iterator[bytes]:
    """Yield the pieces of a file of the driver, which has ``size`` bytes. ``first`` is the result with the first piece, or None.

    In one piece, a screenshot could be a line of 27 MiB, which would block the reactor's thread while it is read.
    """
    offset, found = 0, first
    while offset < size:
        found = found or _ask(call, {**request, "offset": offset}, FILE_SECONDS).get("result")
        piece = _checked(lambda found=found: base64.b64decode(found["data"], validate=True))
        if not piece or offset + len(piece) > size:
            raise _unusable("its file has another size")
        yield piece
        offset, found = offset + len(piece), None
