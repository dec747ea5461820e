"""A program that opens web pages and extracts their text: a JSON request on a line of standard input, the answer on one of output.

It runs as the sandbox's unprivileged user in a process of its own, because anybody can write what it reads. Each page is read in a
fork, which ends with its page: the process that stays looks at nothing that a server sent. Its first reply to a request is an
empty line: the server may get the request from now on. The answer is the result of ``browse``, or {"fault": code, "fields": {}}.
"""

from __future__ import annotations

import gc
import http.client
import json
import os
import signal
import socket
import sys
import time
import typing
import urllib.error
from types import FrameType, ModuleType
from typing import Any
from urllib.parse import urljoin, urlsplit

from ..protocol.page_urls import is_loopback, normalize_url
from .fetching import Response, fetch
from .page_text import LINKS, decode, describe, extract, extract_pdf, load_parser

REDIRECTS = 10
ANSWER_BYTES = 8 << 20
LOOK_SECONDS = 0.2
LITTLE_TEXT = 400  # characters: less is a page that its scripts fill
STATUS_OF_REDIRECTS = {301, 302, 303, 307, 308}


class PageError(Exception):
    """The page cannot be opened; ``code`` and ``fields`` are those of the fault."""

    def __init__(self, code: str, **fields: Any) -> None:
        super().__init__(code)
        self.code, self.fields = code, fields


class Deadline:
    """Raise DeadlineError in the main thread, whatever it waits for, after ``seconds`` in which the program could run.

    A gap between two looks means that the sandbox was paused or had no processor, and counts as one look. If that goes on, the
    guest ends the program.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._last = time.monotonic()
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, self._next())

    def _next(self) -> float:
        return max(min(self._left, LOOK_SECONDS), 0.001)

    def _look(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        self._left -= min(now - self._last, 4 * LOOK_SECONDS)
        self._last = now
        if self._left <= 0.0005:
            raise DeadlineError
        signal.setitimer(signal.ITIMER_REAL, self._next())


class DeadlineError(BaseException):
    """The time is up. Not an Exception, so that no library in between handles it as one of its own errors."""


# Exit statuses of the process that read a page.
OPENED, NOT_OPENED = 0, 3


def main() -> int:
    """Answer requests until the input ends, or until a page cannot be opened, as then another is unlikely to follow soon."""
    # If bs4 imported them, they would take half of the time until a first page is read. One is for CSS selectors, which nothing
    # here uses, and what it needs of the other is in typing as well.
    sys.modules.setdefault("soupsieve", ModuleType("soupsieve"))
    sys.modules.setdefault("typing_extensions", typing)
    while request := sys.stdin.buffer.readline():
        answer, status = _read_in_fork(request)
        if status not in (OPENED, NOT_OPENED) or len(answer) > ANSWER_BYTES:
            return 1
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()
        if status == NOT_OPENED:
            break
        load_parser()  # after the first answer, which does not wait for it unless it needs it
    return 0


def _read_in_fork(request: bytes) -> tuple[bytes, int]:
    """Return what a fork answers, and its exit status. The fork keeps only one descriptor to the guest: its log."""
    read, write = os.pipe()
    gc.freeze()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.dup2(write, sys.stdout.fileno())
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), sys.stdin.fileno())
            os.close(read)
            os.close(write)
            gc.enable()
            status = _answer(json.loads(request))
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    with open(read, "rb") as source:
        answer = source.read(ANSWER_BYTES + 1)
    return answer, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _answer(request: dict[str, Any]) -> int:
    """Write the answer. Returns the exit status."""
    seconds = float(request["timeout_seconds"])
    status = NOT_OPENED
    try:
        # The start of this program is a gap like any other: the sandbox may have been paused meanwhile.
        Deadline(max(float(request["deadline"]) - time.monotonic(), seconds - 4 * LOOK_SECONDS))
        answer = browse(request)
        status = OPENED
    except PageError as error:
        answer = {"fault": error.code, "fields": error.fields}
    except DeadlineError:
        answer = {"fault": "timeout", "fields": {"url": request["url"], "seconds": seconds}}
    signal.setitimer(signal.ITIMER_REAL, 0)
    json.dump(answer, sys.stdout)
    sys.stdout.flush()
    return status


def browse(request: dict[str, Any]) -> dict[str, Any]:
    """Return the result of ``browse``. Raises PageError and DeadlineError."""
    url = _requested(request["url"])
    redirects: list[str] = []
    while True:
        response = _fetch(url, request["ca_bundle"])
        if response.status not in STATUS_OF_REDIRECTS or not response.location:
            break
        if len(redirects) == REDIRECTS:
            raise PageError("too_many_redirects", url=request["url"], redirects=REDIRECTS, location=url)
        url = _requested(urljoin(url, response.location))
        redirects.append(url)
    title, text, links = _present(response, url, bool(request["raw"]), request.get("pdftotext"))
    offset, count = int(request["offset"]), int(request["max_chars"])
    part = text[offset : offset + count]
    return {
        "url": request["url"],
        "final_url": url,
        "status": response.status,
        "content_type": response.content_type,
        "title": title,
        "text": part,
        "links": links[:LINKS],
        "offset": offset,
        "total_chars": len(text),
        "size_bytes": response.size_bytes,
        "truncated": response.truncated or offset + len(part) < len(text),
        "redirects": redirects,
        "needs_scripts": needs_scripts(response, text, url),
    }


def needs_scripts(response: Response, text: str, url: str) -> bool:
    """Return whether a page has scripts and is a server's of the sandbox, or says next to nothing without them."""
    if response.kind() != "html" or b"<script" not in response.body.lower():
        return False
    return len(text) < LITTLE_TEXT or is_loopback(urlsplit(url).hostname or "")


def _present(response: Response, url: str, raw: bool, pdftotext: str | None) -> tuple[str, str, list[dict[str, str]]]:
    """Return title, text and links."""
    kind = response.kind()
    if kind == "other":
        if response.body.startswith(b"%PDF-") and pdftotext is not None and not raw:
            return "", extract_pdf(response.body, pdftotext) or describe(response), []
        return "", describe(response), []
    text = decode(response)
    return ("", text, []) if raw or kind == "text" else extract(text, url)


def _requested(url: str) -> str:
    """Return the URL in the form that is requested. Raises PageError ``invalid_url``."""
    try:
        return normalize_url(url)
    except ValueError as error:
        raise PageError("invalid_url", url=url, problem=str(error)) from None


def _fetch(url: str, ca_bundle: str | None) -> Response:
    try:
        return fetch(url, ca_bundle)
    except urllib.error.URLError as error:
        reason = error.reason
        if isinstance(reason, TimeoutError):
            raise DeadlineError from None
        raise PageError("connection_failed", url=url, problem=_reason_text(reason)) from None
    except TimeoutError:
        raise DeadlineError from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise PageError("connection_failed", url=url, problem=_reason_text(error)) from None


def _reason_text(reason: object) -> str:
    if isinstance(reason, socket.gaierror):
        return f"the host name was not found ({reason.strerror})"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__
