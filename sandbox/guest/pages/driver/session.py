"""A session of the browser: the requests of the guest, and what is told of the page."""

from __future__ import annotations

import base64
import os
import time
from collections import Counter
from typing import Any

from . import page_script
from .chromium import Chromium
from .devtools import LateError, RefusedError
from .steps import StepError, Steps
from .tab import ACCEPTED, Tab
from .tabs import RECOVER_SECONDS, Tabs

COLLECT_SECONDS = 0.8  # of a request's time, kept to tell what there is when the rest is over
CHANGES, CHANGE_CHARS = 30, 300
SIDE, AREA = 16384, 24_000_000  # of a screenshot, in pixels
CHUNK = 1 << 17
PICTURE_CHUNK, MOST_PICTURES = 1 << 20, 4
UNREACHED = ("connection_failed", "too_many_redirects")  # there is no page

Fields = dict[str, Any]


class Session:
    """Answers the guest's requests about the browser: ``handle`` takes one."""

    def __init__(self, chromium: Chromium, folder: str) -> None:
        self._folder = folder
        self._pictures: dict[int, bytes] = {}  # those that the guest has not had whole
        self._picture_count = 0
        self.tabs = Tabs(chromium, folder)
        self._steps = Steps(self.tabs, self._received)

    def handle(self, request: Fields) -> Fields:
        """Answer a request: {"result"} or {"fault", "fields", "result"}. Raises BrowserLostError."""
        self.tabs.told()
        for tab in self.tabs.all():
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
            pages = self.tabs.current.pages
            closed = self.tabs.recover()
            fields = {"problem": str(error)[:200], "closed": closed, "pages": pages, "crashed": False}
            return {"fault": "timeout", "fields": fields, "result": self._what_there_is(request)}
        except RefusedError as error:
            if self.tabs.current.crashed:
                self.tabs.replace_current()
                return {"fault": "browser_failed", "fields": {"crashed": True}, "result": self._what_there_is(request)}
            return {"fault": "browser_failed", "fields": {"problem": str(error)[:300]}, "result": None}

    def _what_there_is(self, request: Fields) -> Fields | None:
        """Return the state of the page for a failure, as far as it can be had quickly."""
        self.tabs.told()
        if request["do"] not in ("open", "interact"):
            return None
        try:
            return self._state(request, time.monotonic() + COLLECT_SECONDS)
        except (LateError, RefusedError, StepError):
            return None

    def _open(self, request: Fields, deadline: float) -> Fields:
        tab = self.tabs.current
        if not request.get("stay") or tab.requested != request["url"]:
            tab.forget()
            self.tabs.navigate(tab, str(request["url"]), deadline)
            if self.tabs.downloads.refused is not None:
                return {"result": {"download": self.tabs.downloads.refused}}
        complete = self._settled(deadline)
        return {"result": {**self._state(request, deadline + COLLECT_SECONDS / 2), "complete": complete}}

    def _settled(self, deadline: float) -> bool:
        """Wait until the page rests, or that of the tab that is shown when this one is gone. Returns whether all of it is there."""
        self.tabs.open_again(deadline)
        tab = self.tabs.current
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
        if self.tabs.open_again(deadline):
            self._settled(deadline)
        tab = self.tabs.current
        found: Fields = {
            "final_url": tab.url,
            "status": tab.status,
            "content_type": tab.content_type,
            "redirects": tab.redirects,
            "too_large": tab.too_large,
            "dialog": tab.dialog,
            "tabs": [
                {"number": each.number, "url": each.url, "current": each is tab} for each in self.tabs.all()
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
            return {"result": {**self._state(request, deadline + COLLECT_SECONDS / 2), "steps": done}}
        except StepError as error:
            state = self._what_there_is(request) or {}
            return {"fault": error.code, "fields": error.fields, "result": {**state, "steps": done}}
        except LateError as error:
            fields = {"problem": str(error)[:200], "pages": self.tabs.current.pages, "closed": self.tabs.recover()}
            return {
                "fault": "timeout",
                "fields": fields,
                "result": {**(self._what_there_is(request) or {}), "steps": done},
            }

    def _require_page(self) -> None:
        """Raise StepError if no page was ever asked for: the empty first tab is nothing to look at."""
        if not self.tabs.visited and self.tabs.current.dialog is None:
            raise StepError("element_not_usable", problem="no_page")

    def _one_step(self, step: Fields, deadline: float) -> Fields:
        by_url = step.get("action") == "download" and str(step.get("target")).startswith(("http://", "https://"))
        if step.get("action") not in ("goto", "tab", "close_tab") and not by_url:
            self._require_page()
        tab = self.tabs.current
        tab.begin()
        lines = self._outline_lines(tab, deadline) if step.get("action") not in ("goto", "tab", "close_tab") else []
        url, tabs_before, dialogs, messages = tab.url, set(self.tabs.all()), tab.dialog_count, tab.console_count
        self.tabs.told()
        told = self._steps.perform(step, deadline)
        complete = self._settled(deadline)
        same = self.tabs.current is tab and tab.dialog is None and tab.url.partition("#")[0] == url.partition("#")[0]
        after = self._outline_lines(tab, deadline) if lines and same else []
        now = self.tabs.current
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
        if len(set(self.tabs.all()) - tabs_before) and now is tab:
            changes.append("another tab was opened")
        if same and now is tab:
            changes += _difference(lines, after)
        return {**told, "action": step.get("action"), "changes": [each[:CHANGE_CHARS] for each in changes]}

    def _screenshot(self, request: Fields, deadline: float) -> Fields:
        self._require_page()
        tab = self.tabs.current
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

    def _received(self, name: str) -> str:
        """Return the path of a file that the guest has sent."""
        return os.path.join(self._folder, "uploads", os.path.basename(name))

    def _receive(self, request: Fields, _: float) -> Fields:
        """Store a piece of a file for a step ``upload``."""
        path = self._received(str(request["name"]))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb" if request["first"] else "ab") as file:
            file.write(base64.b64decode(request["data"]))
        return {"result": {}}

    def _send(self, request: Fields, _: float) -> Fields:
        """Return a piece of the last download."""
        with open(self.tabs.downloads.path, "rb") as file:
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
