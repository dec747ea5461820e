"""A program that opens web pages and extracts their text: a JSON request on a line of standard input, the answer on one of output.

It runs as the sandbox's unprivileged user in a process of its own, because anybody can write what it reads. Each page is read in a
fork, which ends with its page: the process that stays looks at nothing that a server sent. The first page is fetched by a fork of
its own, which loads what it needs for that while this process loads the parser of HTML. The first reply to a request is an
empty line: the server may get the request from now on. The answer is the result of ``browse``, or {"fault": code, "fields": {}}.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import typing
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from ..protocol.page_urls import is_loopback, normalize_url
from .page_text import LINKS, decode, describe, extract, extract_pdf, load_parser
from .response import Response

T = TypeVar("T")

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
    # bs4 would import both, which takes half of the time until a first page is read. Nothing here uses CSS selectors, which
    # soupsieve is for, and typing has the names of typing_extensions that bs4 uses.
    sys.modules.setdefault("soupsieve", ModuleType("soupsieve"))
    sys.modules.setdefault("typing_extensions", typing)
    read = _read_first
    while line := sys.stdin.buffer.readline():
        answer, status = read(json.loads(line))
        if status not in (OPENED, NOT_OPENED) or len(answer) > ANSWER_BYTES:
            return 1
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()
        if status == NOT_OPENED:
            break
        from . import fetching  # noqa: F401 - after the first answer, which did not wait for it here

        read = _read
    return 0


def _read_first(request: dict[str, Any]) -> tuple[bytes, int]:
    """Return the answer to a request before which nothing was loaded, and the exit status of the process that made it."""
    fetcher = _Fork(lambda: _answer(request, lambda: open_page(request), lambda page: page.write(sys.stdout.buffer)))
    _begin()
    load_parser()
    presenter = _Fork(lambda: _answer(request, lambda: present(request, _fetched()), _print), fetcher.output)
    found = presenter.finish()
    fetcher.end()
    return found


def _read(request: dict[str, Any]) -> tuple[bytes, int]:
    """Do the same in one process."""
    reader = _Fork(lambda: _answer(request, lambda: browse(request), _print))
    _begin()
    return reader.finish()


def _begin() -> None:
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


class _Fork:
    """A process for one page that does ``work``, which returns its exit status. It keeps only one descriptor to the guest: its log.

    ``output`` is the end of a pipe with what it prints. Its input is ``source``, which is closed here.
    """

    def __init__(self, work: Callable[[], int], source: int | None = None) -> None:
        self.output, write = os.pipe()
        gc.freeze()
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                given = os.open(os.devnull, os.O_RDONLY) if source is None else source
                os.dup2(given, sys.stdin.fileno())
                os.dup2(write, sys.stdout.fileno())
                for descriptor in (given, write, self.output):
                    os.close(descriptor)
                gc.enable()
                status = work()
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(write)
        if source is not None:
            os.close(source)

    def finish(self) -> tuple[bytes, int]:
        """Return what it prints, and its exit status."""
        with open(self.output, "rb") as source:
            answer = source.read(ANSWER_BYTES + 1)
        return answer, os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def end(self) -> None:
        """End it, if it has not ended."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _answer(request: dict[str, Any], make: Callable[[], T], write: Callable[[T], object]) -> int:
    """Make something in the time of the request, and write it, or else a fault. Returns the exit status."""
    seconds = float(request["timeout_seconds"])
    status = NOT_OPENED
    try:
        # The start of this program is a gap like any other: the sandbox may have been paused meanwhile.
        Deadline(max(float(request["deadline"]) - time.monotonic(), seconds - 4 * LOOK_SECONDS))
        made = make()
        signal.setitimer(signal.ITIMER_REAL, 0)
        write(made)
        status = OPENED
    except PageError as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _print({"fault": error.code, "fields": error.fields})
    except DeadlineError:
        _print({"fault": "timeout", "fields": {"url": request["url"], "seconds": seconds}})
    sys.stdout.flush()
    return status


def _print(answer: dict[str, Any]) -> None:
    json.dump(answer, sys.stdout)


def _fetched() -> Response:
    """Return what the process before this one fetched. Raises PageError if it could not."""
    with open(sys.stdin.fileno(), "rb", closefd=False) as source:
        try:
            fields = json.loads(source.readline() or b"{}")
            if "fault" in fields:
                raise PageError(fields["fault"], **fields["fields"])
            return Response.read(fields, source)
        except (EOFError, KeyError, ValueError):  # it was killed, or has said what went wrong
            os._exit(1)


def browse(request: dict[str, Any]) -> dict[str, Any]:
    """Return the result of ``browse``. Raises PageError and DeadlineError."""
    return present(request, open_page(request))


def open_page(request: dict[str, Any]) -> Response:
    """Return the answer to the URL of the request, and to those that it leads to. Raises PageError and DeadlineError."""
    url = _requested(request["url"])
    redirects: list[str] = []
    while True:
        response = _fetch(url, request["ca_bundle"])
        if response.status not in STATUS_OF_REDIRECTS or not response.location:
            response.redirects = redirects
            return response
        if len(redirects) == REDIRECTS:
            raise PageError("too_many_redirects", url=request["url"], redirects=REDIRECTS, location=url)
        url = _requested(response.location, url)
        redirects.append(url)


def present(request: dict[str, Any], response: Response) -> dict[str, Any]:
    """Return the result of ``browse`` for what was fetched."""
    title, text, links = _read_body(response, bool(request["raw"]), request.get("pdftotext"))
    offset, count = int(request["offset"]), int(request["max_chars"])
    part = text[offset : offset + count]
    return {
        "url": request["url"],
        "final_url": response.url,
        "status": response.status,
        "content_type": response.content_type,
        "title": title,
        "text": part,
        "links": links[:LINKS],
        "offset": offset,
        "total_chars": len(text),
        "size_bytes": response.size_bytes,
        "truncated": response.truncated or offset + len(part) < len(text),
        "redirects": response.redirects,
        "needs_scripts": needs_scripts(response, text),
    }


def needs_scripts(response: Response, text: str) -> bool:
    """Return whether a page has scripts and is a server's of the sandbox, or says next to nothing without them."""
    if response.kind() != "html" or b"<script" not in response.body.lower():
        return False
    return len(text) < LITTLE_TEXT or is_loopback(urlsplit(response.url).hostname or "")


def _read_body(response: Response, raw: bool, pdftotext: str | None) -> tuple[str, str, list[dict[str, str]]]:
    """Return title, text and links."""
    kind = response.kind()
    if kind == "other":
        if response.body.startswith(b"%PDF-") and pdftotext is not None and not raw:
            return "", extract_pdf(response.body, pdftotext) or describe(response), []
        return "", describe(response), []
    text = decode(response)
    return ("", text, []) if raw or kind == "text" else extract(text, response.url)


def _requested(url: str, base: str = "") -> str:
    """Return the URL in the form that is requested; it may be relative to ``base``. Raises PageError ``invalid_url``."""
    try:
        return normalize_url(urljoin(base, url) if base else url)
    except ValueError as error:
        raise PageError("invalid_url", url=url, problem=str(error)) from None


def _fetch(url: str, ca_bundle: str | None) -> Response:
    import http.client  # what takes long to load is loaded by the process that fetches the first page
    import urllib.error

    from .fetching import fetch

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
    import socket

    if isinstance(reason, socket.gaierror):
        return f"the host name was not found ({reason.strerror})"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__
