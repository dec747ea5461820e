"""A session of the browser: its tabs, and the requests of the guest."""

from __future__ import annotations

import base64
import os
import time
from collections import Counter
from typing import Any

from . import page_script
from .chromium import Chromium
from .devtools import BrowserLostError, DevTools, LateError, RefusedError
from .downloads import Downloads
from .steps import StepError, Steps
from .tab import ACCEPTED, Tab

MOST_TABS = 8
START_SECONDS = 20.0
RECOVER_SECONDS = 1.0
REPLACE_SECONDS = 5.0
COLLECT_SECONDS = 0.8  # of a request's time, kept to tell what there is when the rest is over
NAVIGATIONS = 3  # tries to open a URL; the last is in a new tab
NO_PAGE = (204, 205)  # answers that leave the page before where it is
CHANGES, CHANGE_CHARS = 30, 300
SIDE, AREA = 16384, 24_000_000  # of a screenshot, in pixels
CHUNK = 1 << 17
PICTURE_CHUNK, MOST_PICTURES = 1 << 20, 4
UNREACHED = ("connection_failed", "too_many_redirects")  # there is no page

Fields = dict[str, Any]


class Session:
    """The browser with its tabs; ``handle`` answers one request of the guest."""

    def __init__(self, chromium: Chromium, folder: str) -> None:
        self._folder = folder
        self._tabs: dict[str, Tab] = {}
        self._closing: dict[str, str] = {}  # sessions and targets of tabs, until the browser says that they are gone
        self._count = 0
        self._visited = False  # whether any page was asked for
        self._pictures: dict[int, bytes] = {}  # those that the guest has not had whole
        self._picture_count = 0
        self._current: Tab | None = None
        self.tools = DevTools(chromium.read_fd, chromium.write_fd, self._on_event)
        self.downloads = Downloads(self.tools, os.path.join(folder, "downloads"))
        self._steps = Steps(self)
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
        self.tab.call("Page.getFrameTree", deadline=deadline)

    # --- tabs --------------------------------------------------------------------------------------------------------------

    @property
    def tab(self) -> Tab:
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
            self._close(session, self._closing[session])
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
            self._close(session, str(info.get("targetId")))
            return
        self._count += 1
        tab = Tab(self.tools, self._count, str(info.get("targetId")), session)
        tab.url = str(info.get("url") or "")[:2048]
        self._tabs[session] = tab
        tab.prepare()
        self._current = tab  # a page that opens a window shows it

    def new_tab(self, deadline: float) -> Tab:
        """Open an empty tab and make it the current one. Raises StepError if there are too many."""
        if len(self._tabs) >= MOST_TABS:
            raise StepError("element_not_usable", problem="too_many_tabs", limit=MOST_TABS)
        return self._empty_tab(deadline)

    def _empty_tab(self, deadline: float, instead_of: Tab | None = None) -> Tab:
        target = self.tools.call("Target.createTarget", {"url": "about:blank"}, deadline=deadline).get("targetId")
        if instead_of is not None:
            self._close(instead_of.session, instead_of.target)

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

    def find_tab(self, number: str) -> Tab:
        """Return a tab by its number. Raises StepError."""
        found = next((tab for tab in self._tabs.values() if str(tab.number) == number), None)
        if found is None:
            known = ", ".join(str(tab.number) for tab in self._tabs.values())
            raise StepError("element_not_usable", problem="no_tab", tab=number[:20], tabs=known)
        return found

    def choose(self, number: str) -> None:
        """Make a tab the current one. Raises StepError."""
        self._current = self.find_tab(number)
        self.tools.send("Page.bringToFront", {}, self._current.session)

    def close_tab(self, tab: Tab, deadline: float) -> None:
        """Close a tab; there is always one left."""
        if len(self._tabs) == 1:
            self.new_tab(deadline)
        self._tabs.pop(tab.session, None)
        self._close(tab.session, tab.target)

    def _close(self, session: str, target: str) -> None:
        self._closing[session] = target
        self.tools.send("Target.closeTarget", {"targetId": target})

    def received(self, name: str) -> str:
        """Return the path of a file that the guest has sent."""
        return os.path.join(self._folder, "uploads", os.path.basename(name))

    # --- requests ----------------------------------------------------------------------------------------------------------

    def handle(self, request: Fields) -> Fields:
        """Answer a request: {"result"} or {"fault", "fields", "result"}. Raises BrowserLostError."""
        for tab in self._tabs.values():
            tab.begin()
        deadline = time.monotonic() + float(request["seconds"])
        do = {
            "open": self._open,
            "interact": self._interact,
            "screenshot": self._screenshot,
            "receive": self._receive,
            "send": self._send,
            "send_picture": self._send_picture,
        }[str(request["do"])]
        try:
            return do(
                request, deadline - COLLECT_SECONDS if float(request["seconds"]) > 2 * COLLECT_SECONDS else deadline
            )
        except StepError as error:
            known = None if error.code in UNREACHED else self._what_there_is(request)
            return {"fault": error.code, "fields": error.fields, "result": known}
        except LateError as error:
            pages = self.tab.pages
            closed = self._recover()
            fields = {"problem": str(error)[:200], "closed": closed, "pages": pages, "crashed": False}
            return {"fault": "timeout", "fields": fields, "result": self._what_there_is(request)}
        except RefusedError as error:
            if self.tab.crashed:
                self._replace_tab()
                return {"fault": "browser_failed", "fields": {"crashed": True}, "result": self._what_there_is(request)}
            return {"fault": "browser_failed", "fields": {"problem": str(error)[:300]}, "result": None}

    def _what_there_is(self, request: Fields) -> Fields | None:
        """Return the state of the page for a failure, as far as it can be had quickly."""
        if request["do"] not in ("open", "interact"):
            return None
        try:
            return self._state(request, time.monotonic() + COLLECT_SECONDS)
        except (LateError, RefusedError, StepError):
            return None

    def _recover(self) -> bool:
        """Stop what a page computes; replace the tab if that does not help. Returns whether it was replaced."""
        tab = self.tab
        if tab.crashed:
            self._replace_tab()
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
            self._replace_tab()
            return True
        if restless:
            self._replace_tab()
        return restless

    def _replace_tab(self) -> None:
        """Close a tab whose page does not answer, and show an empty one in its place."""
        old = self.tab
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
            self._replace_tab()
        return self.tab

    def navigate(self, tab: Tab, url: str, deadline: float, *, tries: int = NAVIGATIONS) -> None:
        """Open a URL in a tab, and wait until its page is there. Raises StepError ``connection_failed`` and the like.

        The page before may load another just then, which would take the place of this one. Then the URL is opened again; the last
        time in a new tab.
        """
        if tab.session not in self._tabs:  # its page has closed it
            tab = self._empty_tab(deadline)
        elif tries == 1:  # whatever the page before does, it ends with its tab
            self._current = tab
            self._replace_tab()
            tab = self.tab
        tab = self._without_dialog(tab, deadline)
        tab.loaded, tab.alerts, tab.unreachable = False, 0, False
        tab.drop_pending()
        tab.redirects, tab.status, tab.refused, tab.error, tab.bytes, tab.too_large = [], None, False, "", 0, False
        tab.requested, self._visited = url, True
        tab.asked_for = tab.asked_url = ""
        tab.shown.clear()
        self.downloads.forget()

        def in_vain() -> bool:
            return tab.blocked() or (tab.forgotten and tries > 1)

        try:
            answer = self.tools.call("Page.navigate", {"url": url}, tab.session, deadline=deadline, interrupt=in_vain)
        except (LateError, RefusedError):
            if (tab.dialog is None and not tab.gone and not tab.forgotten) or tries == 1:
                raise
            self.navigate(tab, url, deadline, tries=tries - 1)
            return
        document, problem = str(answer.get("loaderId") or ""), str(answer.get("errorText") or "")
        aborted, comes = problem == "net::ERR_ABORTED", bool(document) and not problem and not answer.get("isDownload")
        instead = aborted and self._answered_without_page(tab, document, deadline)
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
            self.downloads.forget()  # those of pages: the URL has a page
        else:
            tab.loaded = True  # it changed a fragment, or downloads
        if tab.refused:
            tab.unreachable = True
            raise StepError("connection_failed", url=url, problem="refused", refused=True)

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

    def _open(self, request: Fields, deadline: float) -> Fields:
        tab = self.tab
        if not request.get("stay") or tab.requested != request["url"]:
            tab.forget()
            self.navigate(tab, str(request["url"]), deadline)
            if self.downloads.refused is not None:
                return {"result": {"download": self.downloads.refused}}
        complete = self._settled(deadline)
        return {"result": {**self._state(request, deadline + COLLECT_SECONDS / 2), "complete": complete}}

    def _settled(self, deadline: float) -> bool:
        tab = self.tab
        try:
            tab.settle(deadline)
        except LateError:
            if not tab.gone:
                tab.call("Runtime.evaluate", {"expression": "1"}, deadline=time.monotonic() + RECOVER_SECONDS)
                return False  # it answers: what it loads does not
        if tab.gone:
            return self._settled(deadline)
        if tab.restless:
            raise LateError("the page keeps showing dialogs or loading other pages")
        if tab.crashed:
            raise RefusedError("the page crashed")
        return not tab.too_large

    def _state(self, request: Fields, deadline: float) -> Fields:
        """Return what is told of the current tab, and forget what its page reported until now."""
        tab = self.tab
        found: Fields = {
            "final_url": tab.url,
            "status": tab.status,
            "content_type": tab.content_type,
            "redirects": tab.redirects,
            "too_large": tab.too_large,
            "dialog": tab.dialog,
            "tabs": [
                {"number": each.number, "url": each.url, "current": each is tab} for each in list(self._tabs.values())
            ],
        }
        if tab.dialog is None and not tab.crashed and not tab.unreachable:
            try:
                found |= self._read_page(tab, request, deadline)
            except (LateError, RefusedError):
                if not tab.gone:
                    raise
                return self._state(request, deadline)  # of the tab that is the current one now
        found |= {
            "console": tab.console,
            "console_count": tab.console_count,
            "failed": tab.failed,
            "failed_count": tab.failed_count,
            "dialogs": tab.dialogs,
        }
        tab.forget()
        return found

    def _read_page(self, tab: Tab, request: Fields, deadline: float) -> Fields:
        function = (
            "function(lines, chars, texts, links){const o = gamebox.outline(lines, chars);"
            "return {title: document.title.slice(0, 1000), outline: o.lines.join('\\n'), cut: o.cut,"
            " url: location.href.slice(0, 2048), text: texts ? gamebox.text(texts) : '', links: links ? gamebox.links(links) : []}}"
        )
        opens = request["do"] == "open"
        texts, links = (page_script.TEXT_CHARS, page_script.LINKS) if opens else (0, 0)
        sizes = (page_script.OUTLINE_LINES, page_script.OUTLINE_CHARS)
        try:
            read = tab.run(function, *sizes, texts, links, deadline=deadline)
        except LateError:
            if tab.dialog is None:
                raise
            return {"dialog": tab.dialog}
        if not isinstance(read, dict):
            return {}
        text, offset, count = (
            str(read.get("text") or ""),
            int(request.get("offset", 0)),
            int(request.get("max_chars", 20000)),
        )
        outline, most = str(read.get("outline") or ""), int(request.get("outline_chars", 0))
        whole = len(outline)
        if whole > most:
            outline = outline[:most].rpartition("\n")[0]
        return {
            "final_url": read.get("url"),
            "title": read.get("title"),
            "text": text[offset : offset + count],
            "total_chars": len(text),
            "links": read.get("links"),
            "outline": outline,
            "outline_chars": whole,
            "outline_cut": bool(read.get("cut")) or len(outline) < whole,
        }

    def _outline_lines(self, tab: Tab, deadline: float) -> list[str]:
        if tab.dialog is not None:
            return []
        sizes = (page_script.OUTLINE_LINES, page_script.OUTLINE_CHARS)
        try:
            found = tab.run("function(l, c){return gamebox.outline(l, c).lines}", *sizes, deadline=deadline)
        except (LateError, RefusedError):
            if not tab.gone:
                raise
            return []
        return [str(line) for line in found] if isinstance(found, list) else []

    def _interact(self, request: Fields, deadline: float) -> Fields:
        done: list[Fields] = []
        try:
            for step in request["steps"]:
                done.append(self._one_step(step, deadline))  # noqa: PERF401  those before one that fails are told
        except StepError as error:
            state = self._what_there_is(request) or {}
            return {"fault": error.code, "fields": error.fields, "result": {**state, "steps": done}}
        except LateError as error:
            fields = {"problem": str(error)[:200], "pages": self.tab.pages, "closed": self._recover()}
            return {
                "fault": "timeout",
                "fields": fields,
                "result": {**(self._what_there_is(request) or {}), "steps": done},
            }
        return {"result": {**self._state(request, deadline + COLLECT_SECONDS / 2), "steps": done}}

    def _require_page(self) -> None:
        """Raise StepError if no page was ever asked for: the empty first tab is nothing to look at."""
        if not self._visited and self.tab.dialog is None:
            raise StepError("element_not_usable", problem="no_page")

    def _one_step(self, step: Fields, deadline: float) -> Fields:
        by_url = step.get("action") == "download" and str(step.get("target")).startswith(("http://", "https://"))
        if step.get("action") not in ("goto", "tab", "close_tab") and not by_url:
            self._require_page()
        tab = self.tab
        tab.begin()
        lines = self._outline_lines(tab, deadline) if step.get("action") not in ("goto", "tab", "close_tab") else []
        url, tabs, dialogs, messages = tab.url, set(self._tabs), tab.dialog_count, tab.console_count
        told = self._steps.perform(step, deadline)
        complete = self._settled(deadline)
        same = self.tab is tab and tab.dialog is None and tab.url.partition("#")[0] == url.partition("#")[0]
        after = self._outline_lines(tab, deadline) if lines and same else []
        now = self.tab
        changes: list[str] = []
        if now is not tab:
            changes.append(f"the current tab is now {now.number}: {now.url}")
        elif now.url != url:
            changes.append(f"the page is now {now.url}")
        if now.status is not None and now.status >= 400 and now.url != url:
            changes.append(f"its status is {now.status}")
        opened = now.dialogs[-(now.dialog_count - dialogs) :][:5] if now is tab and now.dialog_count > dialogs else []
        changes += [f"accepted a dialog: {_dialog_words(each)}" for each in opened if each["type"] in ACCEPTED]
        if now.dialog is not None:
            changes.append(f"a dialog is open: {_dialog_words(now.dialog)}")
        if (more := now.console_count - messages) > 0 and now is tab:
            changes += [
                f"console {each['level']}: {each['text'][:CHANGE_CHARS]}"
                for each in now.console[-more:]
                if each["level"] == "error"
            ][:5]
        if not complete:
            changes.append("the page still loads")
        if len(set(self._tabs) - tabs) and now is tab:
            changes.append("another tab was opened")
        if same and now is tab:
            changes += _difference(lines, after)
        return {**told, "action": step.get("action"), "changes": [each[:CHANGE_CHARS] for each in changes]}

    def _screenshot(self, request: Fields, deadline: float) -> Fields:
        self._require_page()
        tab = self.tab
        if tab.dialog is not None:
            raise StepError("dialog_open", **tab.dialog)
        parameters: Fields = {"format": "png", "optimizeForSpeed": False}
        cut = False
        if request.get("target"):
            step = {"target": request["target"]}
            element = self._steps._element(tab, step, deadline)
            clip = tab.on(element, "function(){return gamebox.box(this)}", deadline=deadline)
        elif request.get("full"):
            clip = {"x": 0, "y": 0, **tab.run("function(){return gamebox.full()}", deadline=deadline)}
        else:
            clip = None
        if clip is not None:
            width, height = min(float(clip["width"]), SIDE), min(float(clip["height"]), SIDE)
            if width < 1 or height < 1:
                raise StepError("element_not_usable", target=request.get("target"), problem="hidden")
            height = min(height, AREA / width)
            cut = height < float(clip["height"]) or width < float(clip["width"])
            parameters["clip"] = {"x": clip["x"], "y": clip["y"], "width": width, "height": height, "scale": 1}
            parameters["captureBeyondViewport"] = True
        content = base64.b64decode(str(tab.call("Page.captureScreenshot", parameters, deadline=deadline).get("data")))
        self._picture_count += 1
        self._pictures[self._picture_count] = content
        while len(self._pictures) > MOST_PICTURES:
            del self._pictures[min(self._pictures)]
        first = self._send_picture({"picture": self._picture_count, "offset": 0}, deadline)["result"]
        told = {"picture": self._picture_count, "size_bytes": len(content)}
        return {"result": {"final_url": tab.url, "cut": cut, **told, **first}}

    def _send_picture(self, request: Fields, _: float) -> Fields:
        """Return a piece of a picture, which is forgotten after the last one."""
        number, offset = int(request["picture"]), int(request["offset"])
        content = self._pictures.get(number, b"")
        if offset + PICTURE_CHUNK >= len(content):
            self._pictures.pop(number, None)
        return {"result": {"data": base64.b64encode(content[offset : offset + PICTURE_CHUNK]).decode()}}

    def _receive(self, request: Fields, _: float) -> Fields:
        """Store a piece of a file for a step ``upload``."""
        path = self.received(str(request["name"]))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb" if request["first"] else "ab") as file:
            file.write(base64.b64decode(request["data"]))
        return {"result": {}}

    def _send(self, request: Fields, _: float) -> Fields:
        """Return a piece of the last download."""
        with open(self.downloads.path, "rb") as file:
            file.seek(int(request["offset"]))
            return {"result": {"data": base64.b64encode(file.read(CHUNK)).decode()}}


def _dialog_words(dialog: Fields) -> str:
    return f"{dialog['type']} {dialog['message'][:200]!r}"


def _difference(before: list[str], after: list[str]) -> list[str]:
    """Return the lines that are gone and those that are new."""
    gone, new = Counter(before), Counter(after)
    gone, new = gone - new, new - gone
    changes: list[str] = []
    for mark, lines, counts in (("-", before, gone), ("+", after, new)):
        for line in lines:
            if counts[line] > 0:
                counts[line] -= 1
                changes.append(f"{mark} {line.strip().removeprefix('- ')}")
    if len(changes) > CHANGES:
        changes = [*changes[:CHANGES], f"and {len(changes) - CHANGES} more lines"]
    return changes
