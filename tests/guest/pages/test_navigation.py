"""Navigations that Chromium drops without a word: the events of its pipe as they were recorded, as no page can force the race."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandbox.guest.pages.driver.chromium import Chromium
from sandbox.guest.pages.driver.devtools import LateError
from sandbox.guest.pages.driver.tabs import Tabs

URL = "http://page.example/"


class Recorded:
    """The browser's end of the pipe. ``navigate(count)`` returns what follows the call number ``count`` to open a page."""

    def __init__(self, navigate: Callable[[int], list[dict[str, Any]]]) -> None:
        self.navigations = 0
        self._navigate = navigate
        self._calls, self.write_fd = os.pipe()
        self.read_fd, self._events = os.pipe()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with open(self._calls, "rb") as calls, open(self._events, "wb", buffering=0) as events:
            buffer = b""
            while data := os.read(calls.fileno(), 65536):
                *messages, buffer = (buffer + data).split(b"\0")
                for message in messages:
                    events.writelines(json.dumps(said).encode() + b"\0" for said in self._answer(json.loads(message)))

    def _answer(self, call: dict[str, Any]) -> list[dict[str, Any]]:
        answer = {"id": call["id"], "result": {}}
        if call["method"] == "Target.setAutoAttach" and "sessionId" not in call:
            target = {"sessionId": "s", "targetInfo": {"type": "page", "targetId": "t", "url": "about:blank"}}
            return [{"method": "Target.attachedToTarget", "params": target}, answer]
        if call["method"] != "Page.navigate":
            return [answer]
        self.navigations += 1
        follows = self._navigate(self.navigations)
        return [{"id": call["id"], **each} if "result" in each else {"sessionId": "s", **each} for each in follows]

    def end(self) -> None:
        os.close(self.write_fd)
        self._thread.join()
        os.close(self.read_fd)


def asked(document: str) -> dict[str, Any]:
    values = {"frameId": "t", "loaderId": document, "url": URL, "navigationType": "differentDocument"}
    return {"method": "Page.frameStartedNavigating", "params": values}


def requested(document: str) -> dict[str, Any]:
    values = {"requestId": document, "type": "Document", "frameId": "t", "request": {"url": URL, "method": "GET"}}
    return {"method": "Network.requestWillBeSent", "params": values}


def shown(document: str) -> dict[str, Any]:
    return {"method": "Page.frameNavigated", "params": {"frame": {"id": "t", "loaderId": document, "url": URL}}}


def answered(document: str) -> dict[str, Any]:
    return {"result": {"frameId": "t", "loaderId": document}}


Start = Callable[[Callable[[int], list[dict[str, Any]]]], tuple[Tabs, Recorded]]


@pytest.fixture
def start(tmp_path: os.PathLike[str]) -> Iterator[Start]:
    browsers: list[Recorded] = []

    def started(navigate: Callable[[int], list[dict[str, Any]]]) -> tuple[Tabs, Recorded]:
        browsers.append(Recorded(navigate))
        ends = SimpleNamespace(read_fd=browsers[0].read_fd, write_fd=browsers[0].write_fd)
        return Tabs(cast("Chromium", ends), str(tmp_path)), browsers[0]

    yield started
    for each in browsers:
        each.end()


def test_a_navigation_that_another_page_overtook_before_its_request_is_tried_again(start: Start) -> None:
    def navigate(count: int) -> list[dict[str, Any]]:
        if count == 1:
            return [asked("reload"), requested("reload"), asked("next"), shown("reload")]
        return [asked("again"), requested("again"), answered("again"), shown("again")]

    tabs, browser = start(navigate)
    tabs.navigate(tabs.current, URL, time.monotonic() + 20)
    assert browser.navigations == 2
    assert tabs.current.shown == {"again": False}


def test_a_navigation_whose_request_was_sent_goes_on(start: Start) -> None:
    follows = [asked("reload"), asked("next"), requested("next"), shown("reload"), answered("next"), shown("next")]
    tabs, browser = start(lambda _: follows)
    tabs.navigate(tabs.current, URL, time.monotonic() + 20)
    assert browser.navigations == 1
    assert tabs.current.shown == {"reload": True, "next": False}


def test_a_page_that_does_not_answer_is_asked_for_once(start: Start) -> None:
    tabs, browser = start(lambda _: [asked("next"), requested("next")])
    with pytest.raises(LateError):
        tabs.navigate(tabs.current, URL, time.monotonic() + 0.3)
    assert browser.navigations == 1
