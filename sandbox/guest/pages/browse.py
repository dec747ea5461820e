"""Opening web pages: a program does it as the sandbox's user, and its answer is checked field by field.

Pages whose scripts matter are opened in the browser instead, where the image has one.
"""

from __future__ import annotations

import json
import os
import time
from urllib.parse import urlsplit

from ..commands.command import describe_command
from ..loop.context import HelperResult, StateCall
from ..protocol.constants import REFUSED, UNREACHED
from ..protocol.faults import Fault
from ..protocol.page_urls import is_loopback
from . import checked
from .readers import PageReaders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GRACE_SECONDS = 0.15  # the program meets the deadline itself, unless it waits for a name to be resolved
PDFTOTEXT = ("/usr/bin/pdftotext", "/usr/local/bin/pdftotext", "/bin/pdftotext")
FAULTS = {"invalid_url", "connection_failed", "too_many_redirects", "timeout"}
FIELDS = ("url", "problem", "redirects", "seconds", "location")
LINKS, REDIRECTS = 200, 10


def browse(call: StateCall) -> dict[str, Any]:
    """Handle ``browse``. Raises Fault, ``network_denied`` if no rule of the network opens the host."""
    wanted = call.args.get("browser")
    if wanted is True and not call.args.get("raw", False):
        return _in_browser(call) or _fetched(call)[0]
    result, needs_scripts = _fetched(call)
    if wanted is None and needs_scripts and not call.args.get("raw", False):
        from .full import has_browser

        if has_browser(call):
            return _in_browser(call) or result
    return result


def _in_browser(call: StateCall) -> dict[str, Any] | None:
    """Open the page in the browser. Returns None for what that would only download."""
    from .full import open_page

    result = open_page(call)
    return None if result.get("download") else result


def _fetched(call: StateCall) -> tuple[dict[str, Any], bool]:
    """Return the page without its scripts, and whether it says next to nothing without them, or is being developed here."""
    args = call.args
    seconds = float(args.get("timeout_seconds", 30))
    request = {
        "url": args["url"],
        "offset": args.get("offset", 0),
        "max_chars": args.get("max_chars", 20000),
        "raw": args.get("raw", False),
        "timeout_seconds": seconds,
        "deadline": time.monotonic() + seconds,
        "ca_bundle": call.place.ca_bundle,
        "pdftotext": next((path for path in PDFTOTEXT if os.access(path, os.X_OK)), None),
    }
    line = json.dumps(request).encode() + b"\n"
    done: HelperResult = call.await_report(lambda report: _readers(call).read(line, seconds + GRACE_SECONDS, report))
    if done.timed_out:
        raise Fault("timeout", url=args["url"], seconds=seconds)
    answer = _parse_answer(done)
    if "fault" in answer:
        raise _fault_from(call, answer)
    try:
        return _check_answer(answer, request), answer.get("needs_scripts") is True
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _invalid_answer(done, str(error)) from None


def _readers(call: StateCall) -> PageReaders:
    """Return what reads the sandbox's pages. Only in the reactor's thread."""
    processes = call.processes
    if processes.page_readers is None:
        processes.page_readers = PageReaders(processes)
    readers: PageReaders = processes.page_readers
    return readers


def _parse_answer(done: HelperResult) -> dict[str, Any]:
    answer = checked.parse_answer(done.stdout)
    if not answer:
        raise _invalid_answer(done, "it is not a JSON object of plain size")
    return answer


def _invalid_answer(done: HelperResult, problem: str) -> Fault:
    log = done.stderr.decode("utf-8", "replace").strip()[-500:]
    return Fault(
        "io_error",
        path="",
        errno="unknown",
        problem=f"the page reader's answer cannot be used: {problem[:200]} {log}".strip(),
    )


def _fault_from(call: StateCall, answer: dict[str, Any]) -> Fault:
    code, reported = answer["fault"], answer.get("fields")
    if code not in FAULTS or not isinstance(reported, dict):
        return Fault("io_error", path="", errno="unknown", problem="the page reader's answer cannot be used")
    fields: dict[str, Any] = {"url": call.args["url"]}
    for name in FIELDS:
        value = reported.get(name)
        if isinstance(value, str):
            fields[name] = checked.unicode(value)[:1000]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            fields[name] = value
    own = own_server(call, fields["url"]) if code == "connection_failed" else {}
    if code == "connection_failed" and not own and _is_refusal(call, str(fields.get("problem"))):
        code = "network_denied"
    return Fault(code, **fields, **own)


def own_server(call: StateCall, url: object) -> dict[str, Any]:
    """Return what a fault says of a server of the sandbox's own that does not answer; {} for another URL."""
    if not _is_own_url(url):
        return {}
    return {"own": True, "live": _running_commands(call), "port": _port_of(str(url))}


def refusal_of(call: StateCall, url: str, *, certain: bool) -> str | None:
    """Return why the network refused the browser the host of ``url``, or None if it did not."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return None
    found: list[str] = []

    def look() -> None:
        command = call.processes.browser_command
        refusals = command.refusals.values() if command is not None else ()
        found.extend(str(each.get("why")) for each in refusals if str(each.get("host")) == host)

    call.hand_over(look)
    if found:
        return found[-1]
    if certain or (call.place.limits.get("network") == "none" and not _is_own_url(url)):
        return "this sandbox has no network" if call.place.limits.get("network") == "none" else "no rule opens it"
    return None


def _running_commands(call: StateCall) -> list[str]:
    """Return the commands that run in the background: one may be the server that does not listen yet."""
    found: list[str] = []

    def look() -> None:
        live = [c for c in call.processes.commands.values() if not c.tree_empty and c.in_background]
        found.extend(describe_command(c) for c in live[-3:])

    call.hand_over(look)
    return found


def _port_of(url: str) -> int | None:
    try:
        parts = urlsplit(url)
        return parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None


def _is_refusal(call: StateCall, problem: str) -> bool:
    return REFUSED in problem or (call.place.limits.get("network") == "none" and UNREACHED not in problem)


def _is_own_url(url: object) -> bool:
    try:
        return is_loopback(urlsplit(str(url)).hostname or "")
    except ValueError:
        return False


def _check_answer(answer: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    return {
        "url": request["url"],
        "final_url": checked.string(answer, "final_url", checked.URL_CHARS),
        "status": checked.number(answer, "status", 100, 999),
        "content_type": checked.string(answer, "content_type", 200),
        "title": checked.string(answer, "title", 1000),
        "text": checked.string(answer, "text", request["max_chars"]),
        "links": checked.items(answer, "links", LINKS, checked.link),
        "offset": request["offset"],
        "total_chars": checked.number(answer, "total_chars", 0, 1 << 40),
        "size_bytes": checked.number(answer, "size_bytes", 0, 1 << 40),
        "truncated": answer["truncated"] is True,
        "redirects": checked.texts(answer, "redirects", REDIRECTS, checked.URL_CHARS),
    }
