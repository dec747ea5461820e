"""The tabs of one browser: which there are, and a URL opened in one of them until its page is there."""

from __future__ import annotations

import os
import time
from typing import Any

from .chromium import Chromium
from .devtools import BrowserLostError, DevTools, LateError, RefusedError
from .downloads import Downloads
from .steps import StepError
from .tab import Tab

MOST_TABS = 8
START_SECONDS = 20.0
RECOVER_SECONDS = 1.0
REPLACE_SECONDS = 5.0
NAVIGATIONS = 3  # tries to open a URL; the last is in a new tab
NO_PAGE = (204, 205)  # answers that leave the page before where it is

Fields = dict[str, Any]


class Tabs:
    """The browser's tabs, of which one is the ``current``."""

    def __init__(self, chromium: Chromium, folder: str) -> None:
        self._tabs: dict[str, Tab] = {}
        self._closing: dict[str, str] = {}  # sessions and targets of tabs, until the browser says that they are gone
        self._count = 0
        self._current: Tab | None = None
        self.visited = False  # whether any page was asked for
        self._opened: Tab | None = None  # the tab that a URL was opened in, until its page is told
        self._opened_again = False
        self.tools = DevTools(chromium.read_fd, chromium.write_fd, self._on_event)
        self.downloads = Downloads(self.tools, os.path.join(folder, "downloads"))
        deadline = time.monotonic() + START_SECONDS
        attach = {
            "autoAttach": True,
            "waitForDebuggerOnStart": True,
            "flatten": True,
            "filter": [{"type": "page"}, {"type": "tab", "exclude": True}, {"exclude": True}],
        }
        self.tools.call("Target.setAutoAttach", attach, deadline=deadline)
        self.downloads.deny()
        if not self.tools.wait_until(lambda: self._current is not None, deadline):
            raise BrowserLostError("it showed no page")
        self.current.call("Page.getFrameTree", deadline=deadline)

    @property
    def current(self) -> Tab:
        """The current tab."""
        if self._current is None or self._current.session not in self._tabs:
            if not self._tabs:
                raise BrowserLostError("its last tab is gone")
            self._current = list(self._tabs.values())[-1]
        return self._current

    def _on_event(self, method: str, values: Fields, session: str) -> None:
        if session in self._tabs:
            self._tabs[session].take(method, values)
        elif method == "Target.attachedToTarget":
            self._attached(values)
        elif method == "Target.detachedFromTarget":
            gone = self._tabs.pop(str(values.get("sessionId")), None)
            if gone is not None:
                gone.gone = True
            self._closing.pop(str(values.get("sessionId")), None)
        elif session in self._closing and method == "Page.frameNavigated":  # a tab that loads a page just then would stay open
            self._close_target(session, self._closing[session])
        elif method.startswith("Browser.download"):
            self.downloads.take(method, values)

    def _attached(self, values: Fields) -> None:
        info, session = values.get("targetInfo") or {}, str(values.get("sessionId"))
        if info.get("type") != "page":
            self.tools.send("Runtime.runIfWaitingForDebugger", {}, session)
            return
        if len(self._tabs) >= MOST_TABS:
            self.tools.send("Page.enable", {}, session)  # has it say what it loads while it is closed
            self.tools.send("Runtime.runIfWaitingForDebugger", {}, session)
            self._close_target(session, str(info.get("targetId")))
            return
        self._count += 1
        tab = Tab(self.tools, self._count, str(info.get("targetId")), session)
        tab.url = str(info.get("url") or "")[:2048]
        self._tabs[session] = tab
        tab.prepare()
        self._current = tab  # a page that opens a window shows it

    def all(self) -> list[Tab]:
        """Return the tabs, in the order in which they were opened."""
        return list(self._tabs.values())

    def open_empty(self, deadline: float) -> Tab:
        """Open an empty tab and make it the current one. Raises StepError if there are too many."""
        if len(self._tabs) >= MOST_TABS:
            raise StepError("element_not_usable", problem="too_many_tabs", limit=MOST_TABS)
        return self._empty_tab(deadline)

    def _empty_tab(self, deadline: float, instead_of: Tab | None = None) -> Tab:
        target = self.tools.call("Target.createTarget", {"url": "about:blank"}, deadline=deadline).get("targetId")
        if instead_of is not None:
            self._close_target(instead_of.session, instead_of.target)

        def made() -> Tab | None:  # a page may open windows meanwhile
            return next((tab for tab in self._tabs.values() if tab.target == target), None)

        self.tools.wait_until(lambda: made() is not None, deadline)
        if (tab := made()) is None:
            raise LateError("a new tab")
        self._current = tab
        try:  # from its answer on it reports what its page does
            tab.call("Page.getFrameTree", deadline=min(deadline, time.monotonic() + RECOVER_SECONDS))
        except LateError:
            pass
        return tab

    def find(self, number: str) -> Tab:
        """Return a tab by its number. Raises StepError."""
        found = next((tab for tab in self._tabs.values() if str(tab.number) == number), None)
        if found is None:
            known = ", ".join(str(tab.number) for tab in self._tabs.values())
            raise StepError("element_not_usable", problem="no_tab", tab=number[:20], tabs=known)
        return found

    def choose(self, number: str) -> None:
        """Make a tab the current one. Raises StepError."""
        self._current = self.find(number)
        self.tools.send("Page.bringToFront", {}, self._current.session)

    def close(self, tab: Tab, deadline: float) -> None:
        """Close a tab; there is always one left."""
        if len(self._tabs) == 1:
            self.open_empty(deadline)
        self._tabs.pop(tab.session, None)
        self._close_target(tab.session, tab.target)

    def _close_target(self, session: str, target: str) -> None:
        self._closing[session] = target
        self.tools.send("Target.closeTarget", {"targetId": target})

    def recover(self) -> bool:
        """Stop what a page computes; replace the tab if that does not help. Returns whether it was replaced."""
        tab = self.current
        if tab.crashed:
            self.replace_current()
            return True
        if tab.dialog is not None:
            return False
        self.tools.send("Page.stopLoading", {}, tab.session)
        self.tools.send("Runtime.terminateExecution", {}, tab.session)
        restless = tab.restless
        tab.begin()
        try:
            tab.call("Runtime.evaluate", {"expression": "1"}, deadline=time.monotonic() + RECOVER_SECONDS)
        except (LateError, RefusedError):
            self.replace_current()
            return True
        if restless:
            self.replace_current()
        return restless

    def replace_current(self) -> None:
        """Close a tab whose page does not answer, and show an empty one in its place."""
        old = self.current
        failed = (old.console, old.console_count, old.failed, old.failed_count, old.dialogs)
        deadline = time.monotonic() + REPLACE_SECONDS
        self._tabs.pop(old.session, None)
        try:
            new = self._empty_tab(deadline, instead_of=old)
        except (LateError, RefusedError) as error:
            raise BrowserLostError(f"it opens no tab: {error}") from None
        new.console, new.console_count, new.failed, new.failed_count, new.dialogs = failed

    def _without_dialog(self, tab: Tab, deadline: float) -> Tab:
        """Dismiss the dialog of a page that is left; a page that shows one after the other loses its tab. Returns the tab."""
        if tab.dialog is None:
            return tab
        tab.dialog = None
        self.tools.send("Page.handleJavaScriptDialog", {"accept": False}, tab.session)
        try:
            tab.call("Runtime.evaluate", {"expression": "1"}, deadline=min(deadline, time.monotonic() + RECOVER_SECONDS))
        except (LateError, RefusedError):
            self._current = tab
            self.replace_current()
        return self.current

    def navigate(self, tab: Tab, url: str, deadline: float, *, tries: int = NAVIGATIONS) -> None:
        """Open a URL in a tab, and wait until its page is there. Raises StepError ``connection_failed`` and the like.

        The page before may load another just then, which would take the place of this one, or have it dropped. Then the URL is
        opened again; the last time in a new tab.
        """
        if tab.session not in self._tabs:  # its page has closed it
            tab = self._empty_tab(deadline)
        elif tries == 1:  # whatever the page before does, it ends with its tab
            self._current = tab
            self.replace_current()
            tab = self.current
        tab = self._without_dialog(tab, deadline)
        tab.expect(url)
        self.visited = True
        self.downloads.forget()

        def in_vain() -> bool:
            return tab.blocked() or (tab.forgotten and tries > 1)

        try:
            answer = self.tools.call("Page.navigate", {"url": url}, tab.session, deadline=deadline, interrupt=in_vain)
        except (LateError, RefusedError):
            another_try = tab.dialog is not None or tab.gone or tab.forgotten
            if not another_try or tries == 1 or time.monotonic() >= deadline:
                raise
            self.navigate(tab, url, deadline, tries=tries - 1)
            return
        document, problem = str(answer.get("loaderId") or ""), str(answer.get("errorText") or "")
        aborted, comes = problem == "net::ERR_ABORTED", bool(document) and not problem and not answer.get("isDownload")
        instead = aborted and bool(document) and self._answered_without_page(tab, document, deadline)
        if tries > 1 and ((aborted and not instead) or (comes and not self._stays(tab, document, deadline))):
            self.navigate(tab, url, deadline, tries=tries - 1)
            return
        self._current = tab  # not a window that the page before opened as it was left
        if problem and not instead:
            tab.loaded = tab.unreachable = True
            code = "too_many_redirects" if "TOO_MANY_REDIRECTS" in problem else "connection_failed"
            location = tab.redirects[-1] if tab.redirects else url
            raise StepError(
                code, url=url, problem=problem, location=location, redirects=len(tab.redirects), refused=tab.refused
            )
        if comes:
            self._opened = tab
            self.downloads.forget()  # those of pages: the URL has a page
        else:
            tab.loaded = True  # it changed a fragment, or downloads
        if tab.refused:
            tab.unreachable = True
            raise StepError("connection_failed", url=url, problem="refused", refused=True)

    def told(self) -> None:
        """Note that what a URL shows was told, or that it will not be: from now on a page may close its tab."""
        self._opened, self._opened_again = None, False

    def open_again(self, deadline: float) -> bool:
        """Open a URL once more, in a new tab, if its tab is gone before its page was told: the page before may have closed it.

        Returns whether it was opened. Raises StepError if the new tab is gone as well: the page itself closes it.
        """
        tab = self._opened
        if tab is None or not tab.gone:
            return False
        if self._opened_again:
            self.told()
            raise StepError("element_not_usable", problem="tab_closed")
        self._opened_again = True
        self.navigate(tab, tab.requested, deadline)
        return True

    def _answered_without_page(self, tab: Tab, document: str, deadline: float) -> bool:
        """Wait until it is known why a navigation was aborted. Returns whether its answer was a download, or had no page."""

        def answered() -> bool:
            refused = self.downloads.refused
            downloads = refused is not None and refused["url"].partition("#")[0] == tab.asked_url  # else another by the page before
            return tab.asked_for == document and (downloads or tab.status in NO_PAGE)

        until = min(deadline, time.monotonic() + RECOVER_SECONDS)
        self.tools.wait_until(lambda: answered() or tab.asked_for != document, until, tab.blocked)
        return answered()

    def _stays(self, tab: Tab, document: str, deadline: float) -> bool:
        """Wait until a tab shows a document that is on its way. Returns whether it stays there. Raises LateError.

        The page before runs until then. If it loads another now, Chromium shows that one after the document.
        """

        def decided() -> bool:
            return document in tab.shown or (tab.asked_for in tab.shown and tab.asked_for != document)

        if self.tools.wait_until(decided, deadline, tab.blocked):
            return tab.shown.get(document) is False
        if not tab.blocked():
            raise LateError("Page.navigate")
        return tab.dialog is None and not tab.gone  # a dialog is of the page before, which keeps its place
