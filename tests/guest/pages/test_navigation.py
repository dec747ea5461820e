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

from sandbox.guest.pages.driver import session as session_module
from sandbox.guest.pages.driver import tab
from sandbox.guest.pages.driver.chromium import Chromium
from sandbox.guest.pages.driver.devtools import LateError
from sandbox.guest.pages.driver.session import Session
from sandbox.guest.pages.driver.tabs import Tabs

URL, FRAME, SESSION = "http://page.example/", "the frame", "the session"


Said = list[dict[str, Any] | float]  # what the browser says, and seconds for which it says nothing


class Recorded:
    """The browser's end of the pipe. ``navigate(count)`` returns what follows the call number ``count`` to open a page."""

    def __init__(self, navigate: Callable[[int], Said]) -> None:
        self.navigations: list[str] = []  # the tab of each
        self.closes_when_read: set[str] = set()  # tabs
        self.lost_contexts = 0  # how many times a page is replaced before the script that reads it is in it
        self._navigate = navigate
        self._made = 0
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
                    pending = b""
                    for each in self._answer(json.loads(message)):
                        if isinstance(each, float):
                            events.write(pending)
                            time.sleep(each)
                            pending = b""
                        else:
                            pending += json.dumps(each).encode() + b"\0"
                    events.write(pending)

    def _answer(self, call: dict[str, Any]) -> Said:
        answer = {"id": call["id"], "result": {"executionContextId": 1}}
        if call["method"] == "Target.createTarget":
            return [self._attached(), {"id": call["id"], "result": {"targetId": f"t{self._made}"}}]
        if call["method"] == "Target.setAutoAttach" and "sessionId" not in call:
            return [self._attached(), answer]
        if call["method"] == "Target.closeTarget":
            session = call["params"]["targetId"].replace("t", "s")
            return [answer, {"method": "Target.detachedFromTarget", "params": {"sessionId": session}}]
        session = call.get("sessionId", "")
        if call["method"] == "Runtime.callFunctionOn" and session in self.closes_when_read:
            return [self._of_tab(CLOSED, call["id"], session)]
        if call["method"] == "Runtime.evaluate" and "contextId" in call["params"] and self.lost_contexts:
            self.lost_contexts -= 1
            return [{"id": call["id"], "error": {"code": -32000, "message": "Cannot find context with specified id"}}]
        if call["method"] != "Page.navigate":
            return [answer]
        self.navigations.append(session)
        return [self._of_tab(each, call["id"], session) for each in self._navigate(len(self.navigations))]

    def _attached(self) -> dict[str, Any]:
        self._made += 1
        target = {"type": "page", "targetId": f"t{self._made}", "url": "about:blank"}
        return {"method": "Target.attachedToTarget", "params": {"sessionId": f"s{self._made}", "targetInfo": target}}

    def _of_tab(self, said: dict[str, Any] | float, number: int, session: str) -> dict[str, Any] | float:
        if isinstance(said, float):
            return said
        of_tab = json.loads(json.dumps(said).replace(FRAME, session.replace("s", "t")).replace(SESSION, session))
        if "result" in of_tab:
            return {"id": number, **of_tab}
        return of_tab if of_tab["method"].startswith(("Browser.", "Target.")) else {"sessionId": session, **of_tab}

    def end(self) -> None:
        """Wait until every call is answered, and end."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self._thread.join()
            os.close(self.read_fd)
            self.write_fd = -1


def asked(document: str) -> dict[str, Any]:
    values = {"frameId": FRAME, "loaderId": document, "url": URL, "navigationType": "differentDocument"}
    return {"method": "Page.frameStartedNavigating", "params": values}


def requested(document: str) -> dict[str, Any]:
    values = {"requestId": document, "type": "Document", "frameId": FRAME, "request": {"url": URL, "method": "GET"}}
    return {"method": "Network.requestWillBeSent", "params": values}


def shown(document: str) -> dict[str, Any]:
    return {"method": "Page.frameNavigated", "params": {"frame": {"id": FRAME, "loaderId": document, "url": URL}}}


def answered(document: str) -> dict[str, Any]:
    return {"result": {"frameId": FRAME, "loaderId": document}}


LOADED = {"method": "Page.frameStoppedLoading", "params": {"frameId": FRAME}}
CLOSED = {"method": "Target.detachedFromTarget", "params": {"sessionId": SESSION}}
DOWNLOADS = {"method": "Page.downloadWillBegin", "params": {"frameId": FRAME, "guid": "g", "url": "data:,x"}}

Start = Callable[[Callable[[int], Said]], tuple[Session, Recorded]]
StartTabs = Callable[[Callable[[int], Said]], tuple[Tabs, Recorded]]


@pytest.fixture
def start_session(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a recorded browser, in whose tabs a request may take 0.2 s, with time enough to tell what there is."""
    monkeypatch.setattr(session_module, "COLLECT_SECONDS", 20.0)
    monkeypatch.setattr(tab, "REQUEST_SECONDS", 0.2)
    browsers: list[Recorded] = []

    def started(navigate: Callable[[int], Said]) -> tuple[Session, Recorded]:
        browsers.append(Recorded(navigate))
        ends = SimpleNamespace(read_fd=browsers[-1].read_fd, write_fd=browsers[-1].write_fd)
        return Session(cast("Chromium", ends), str(tmp_path)), browsers[-1]

    yield started
    for each in browsers:
        each.end()


@pytest.fixture
def start(start_session: Start) -> StartTabs:
    """Start a recorded browser for its tabs alone."""

    def started(navigate: Callable[[int], Said]) -> tuple[Tabs, Recorded]:
        session, browser = start_session(navigate)
        return session.tabs, browser

    return started


COMES = [asked("again"), requested("again"), answered("again"), shown("again")]
DROPPED: dict[str, Said] = {
    "another page is shown": [asked("reload"), requested("reload"), asked("next"), shown("reload")],
    "a download begins": [asked("next"), DOWNLOADS],
    "nothing is even begun": [shown("reload")],
}


@pytest.mark.parametrize("what", DROPPED)
def test_a_navigation_that_is_dropped_before_its_request_is_tried_again(start: StartTabs, what: str) -> None:
    tabs, browser = start(lambda count: [*DROPPED[what]] if count == 1 else [*COMES])
    tabs.navigate(tabs.current, URL, time.monotonic() + 60)
    browser.end()
    assert browser.navigations == ["s1", "s1"]
    assert tabs.current.shown == {"again": False}


def test_the_third_try_is_in_a_new_tab(start: StartTabs) -> None:
    late: Said = [asked("again"), shown("blank"), 0.5, *COMES[1:]]  # there is no fourth
    tabs, browser = start(lambda count: [*DROPPED["another page is shown"]] if count < 3 else late)
    tabs.navigate(tabs.current, URL, time.monotonic() + 60)
    browser.end()
    assert browser.navigations == ["s1", "s1", "s2"]
    assert [each.number for each in tabs.all()] == [tabs.current.number] == [2]


WAITS: dict[str, Said] = {
    "its page answers late": [asked("next"), requested("next"), 0.5, answered("next"), shown("next")],
    "another page is shown after the request": [
        asked("reload"),
        asked("next"),
        requested("next"),
        shown("reload"),
        0.5,
        answered("next"),
        shown("next"),
    ],
    "the page before takes its time to be left": [asked("next"), 0.5, requested("next"), answered("next"), shown("next")],
    "a page downloads meanwhile": [asked("next"), DOWNLOADS, requested("next"), 0.5, answered("next"), shown("next")],
}


@pytest.mark.parametrize("what", WAITS)
def test_a_navigation_that_goes_on_is_waited_for(start: StartTabs, what: str) -> None:
    """A second try would use up a link that works once."""
    tabs, browser = start(lambda _: [*WAITS[what]])
    tabs.navigate(tabs.current, URL, time.monotonic() + 60)
    browser.end()
    assert browser.navigations == ["s1"]
    assert tabs.current.shown["next"] is False


def test_a_page_that_does_not_answer_is_asked_for_once(start: StartTabs) -> None:
    tabs, browser = start(lambda _: [asked("next"), requested("next")])
    with pytest.raises(LateError):
        tabs.navigate(tabs.current, URL, time.monotonic() + 0.8)
    browser.end()
    assert browser.navigations == ["s1"]


def test_no_tab_is_replaced_after_the_deadline(start: StartTabs) -> None:
    tabs, browser = start(lambda _: [*DROPPED["another page is shown"]])
    with pytest.raises(LateError):
        tabs.navigate(tabs.current, URL, time.monotonic() + 0.22)
    browser.end()
    assert browser.navigations == ["s1"]


OPENS: dict[str, dict[str, Any]] = {
    "open": {"do": "open", "url": URL, "seconds": 60},
    "step": {"do": "interact", "steps": [{"action": "goto", "value": URL}], "seconds": 60},
}


@pytest.mark.parametrize("when", ["it comes", "it is read"])
@pytest.mark.parametrize("opens", OPENS)
def test_a_page_is_opened_again_if_the_page_before_closes_the_tab(start_session: Start, opens: str, when: str) -> None:
    """What another tab shows was told as if it was the page that was asked for."""
    session, browser = start_session(lambda count: [*COMES, LOADED, *([CLOSED] if when == "it comes" and count == 1 else [])])
    other = session.tabs.current
    other.loaded = False  # it is not waited for
    session.tabs.open_empty(time.monotonic() + 60)
    browser.closes_when_read = {"s2"} if when == "it is read" else set()
    answer = session.handle(OPENS[opens])
    browser.end()
    assert browser.navigations == ["s2", "s3"]
    assert "fault" not in answer
    assert session.tabs.current.session == "s3"


@pytest.mark.parametrize("when", ["it comes", "it is read"])
@pytest.mark.parametrize("opens", OPENS)
def test_a_page_that_closes_its_own_tab_is_opened_twice_and_told_as_closed(
    start_session: Start, opens: str, when: str
) -> None:
    session, browser = start_session(lambda _: [*COMES, LOADED, *([CLOSED] if when == "it comes" else [])])
    other = session.tabs.current
    session.tabs.open_empty(time.monotonic() + 60)
    browser.closes_when_read = {"s2", "s3"}
    answer = session.handle(OPENS[opens])
    browser.end()
    assert browser.navigations == ["s2", "s3"]
    assert (answer["fault"], answer["fields"]) == ("element_not_usable", {"problem": "tab_closed"})
    assert session.tabs.current is other
    assert [each["current"] for each in answer["result"]["tabs"]] == [True]


@pytest.mark.parametrize("when", ["it comes", "it is read"])
@pytest.mark.parametrize("opens", OPENS)
def test_a_page_that_is_a_download_the_second_time_is_told_as_closed(start_session: Start, opens: str, when: str) -> None:
    """The new tab would be told as an empty page."""
    download = {"result": {"frameId": FRAME, "loaderId": "again", "isDownload": True, "errorText": "net::ERR_ABORTED"}}
    begins = {"method": "Browser.downloadWillBegin", "params": {"guid": "g", "url": URL, "suggestedFilename": "x"}}

    def navigate(count: int) -> Said:
        if count == 1:
            return [*COMES, LOADED, *([CLOSED] if when == "it comes" else [])]
        return [asked("again"), requested("again"), begins, download]

    session, browser = start_session(navigate)
    session.tabs.open_empty(time.monotonic() + 60)
    browser.closes_when_read = {"s2"} if when == "it is read" else set()
    answer = session.handle(OPENS[opens])
    browser.end()
    assert browser.navigations == ["s2", "s3"]
    assert (answer["fault"], answer["fields"]) == ("element_not_usable", {"problem": "tab_closed"})


def test_a_tab_that_closes_in_a_later_step_is_not_opened_again(start_session: Start) -> None:
    session, browser = start_session(lambda _: [*COMES, LOADED])
    other = session.tabs.current
    session.tabs.open_empty(time.monotonic() + 60)
    assert "fault" not in session.handle(OPENS["open"])
    browser.closes_when_read = {"s2"}
    session.handle({"do": "interact", "steps": [{"action": "evaluate", "value": "close()"}], "seconds": 60})
    browser.end()
    assert browser.navigations == ["s2"]
    assert session.tabs.current is other


@pytest.mark.parametrize(("lost", "fault"), [(5, None), (99, "timeout")])
def test_a_page_that_is_replaced_before_it_is_read_is_read_again(start_session: Start, lost: int, fault: str | None) -> None:
    session, browser = start_session(lambda _: [*COMES, LOADED])
    browser.lost_contexts = lost
    answer = session.handle(OPENS["open"])
    browser.end()
    assert answer.get("fault") == fault
