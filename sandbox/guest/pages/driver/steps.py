"""The steps of ``browse_interact``: each finds its element, waits until it can be used, and acts as a person would."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import keys
from .devtools import LateError, RefusedError
from .tab import Tab, exception_text

if TYPE_CHECKING:
    from .tabs import Tabs

ELEMENT_SECONDS = 5.0  # how long an element may take to appear and to become usable
POLL_SECONDS = 0.05
VALUE_CHARS = 20_000
TYPED_CHARS = 5000
DOWNLOAD_SECONDS = 60.0

Fields = dict[str, Any]


class StepError(Exception):
    """A step cannot be carried out; ``code`` and ``fields`` are those of the fault."""

    def __init__(self, code: str, **fields: Any) -> None:
        super().__init__(code)
        self.code, self.fields = code, fields


class Steps:
    """Carries out steps in the current tab. ``received`` returns the path of a file that the guest has sent, by its name."""

    def __init__(self, tabs: Tabs, received: Callable[[str], str]) -> None:
        self._tabs = tabs
        self._received = received

    def perform(self, step: Fields, deadline: float) -> Fields:
        """Carry out one step. Returns what is to be told of it: "what", "value", "download". Raises StepError and LateError."""
        action = str(step.get("action"))
        handler: Callable[[Tab, Fields, float], Fields] = getattr(self, f"_{action}")
        while True:
            tab = self._tabs.current
            if tab.dialog is not None and action not in ("dialog", "tab", "close_tab"):
                raise StepError("dialog_open", **tab.dialog)
            try:
                return handler(tab, step, deadline)
            except (LateError, RefusedError, StepError):
                if not tab.gone or action == "goto" or time.monotonic() > deadline:
                    raise
                if action != "wait":  # what is waited for may be in the tab that is shown now
                    raise StepError("element_not_usable", problem="tab_closed") from None

    # --- pages -------------------------------------------------------------------------------------------------------------

    def _goto(self, tab: Tab, step: Fields, deadline: float) -> Fields:
        self._tabs.navigate(tab, str(step["value"]), deadline)
        return {}

    def _back(self, tab: Tab, _: Fields, deadline: float) -> Fields:
        history = tab.call("Page.getNavigationHistory", deadline=deadline)
        at, entries = int(history.get("currentIndex", 0)), history.get("entries") or []
        if at <= 0 or not entries or entries[at - 1].get("url") == "about:blank":
            raise StepError("element_not_usable", problem="first_page")
        tab.loaded = False
        tab.call("Page.navigateToHistoryEntry", {"entryId": entries[at - 1]["id"]}, deadline=deadline)
        started = time.monotonic()
        # A page that comes back from memory does not always say that it has loaded.
        self._tabs.tools.wait_until(lambda: tab.loaded, min(deadline, started + ELEMENT_SECONDS), tab.blocked)
        tab.loaded = True
        return {}

    def _tab(self, _: Tab, step: Fields, deadline: float) -> Fields:
        wanted = str(step.get("value") or "")
        if wanted == "new":
            self._tabs.open_empty(deadline)
            if step.get("target"):
                self._tabs.navigate(self._tabs.current, str(step["target"]), deadline)
            return {}
        self._tabs.choose(wanted)
        return {}

    def _close_tab(self, tab: Tab, step: Fields, deadline: float) -> Fields:
        if step.get("value"):
            tab = self._tabs.find(str(step["value"]))
        self._tabs.close(tab, deadline)
        return {}

    def _dialog(self, tab: Tab, step: Fields, deadline: float) -> Fields:
        dialog = tab.dialog
        if dialog is None:
            raise StepError("element_not_usable", problem="no_dialog")
        answer = step.get("value")
        parameters: Fields = {"accept": answer != "dismiss"}
        if dialog["type"] == "prompt" and answer not in (None, "accept", "dismiss"):
            parameters["promptText"] = str(answer)
        tab.dialog = None
        self._tabs.tools.call("Page.handleJavaScriptDialog", parameters, tab.session, deadline=deadline)
        return {"what": f"{dialog['type']} {json.dumps(dialog['message'][:200], ensure_ascii=False)}"}

    # --- elements ----------------------------------------------------------------------------------------------------------

    def _element(self, tab: Tab, step: Fields, deadline: float) -> str:
        """Return the element of a step as soon as there is one."""
        target = str(step.get("target") or "")
        until = min(deadline, time.monotonic() + ELEMENT_SECONDS)
        is_reference = (
            target.strip("[]").removeprefix("ref=")[1:].isdigit() and target.strip("[]").removeprefix("ref=")[0] == "e"
        )
        while True:
            try:
                found = tab.object_of(target, deadline=deadline)
            except RefusedError as error:
                raise StepError("element_not_found", target=target, problem=str(error)[:300]) from None
            if found is not None:
                return found
            if is_reference:
                raise StepError("element_not_found", target=target, reference=True)
            self._pause(until, StepError("element_not_found", target=target), tab)

    def _pause(self, until: float, error: StepError, tab: Tab) -> None:
        if time.monotonic() >= until:
            raise error
        self._tabs.tools.wait_until(lambda: False, min(until, time.monotonic() + POLL_SECONDS), tab.blocked)
        if tab.blocked():
            raise error

    def _point(self, tab: Tab, step: Fields, deadline: float) -> tuple[float, float, str]:
        """Return where the element can be clicked, once it can, and what it is."""
        until = min(deadline, time.monotonic() + ELEMENT_SECONDS)
        while True:
            element = self._element(tab, step, deadline)
            found = tab.on(element, "function(){return gamebox.point(this)}", deadline=deadline) or {}
            if "x" in found:
                return float(found["x"]), float(found["y"]), str(found.get("what"))
            fields = {"target": step.get("target"), "problem": found.get("problem"), "by": found.get("by", "")}
            self._pause(until, StepError("element_not_usable", **fields), tab)

    def _mouse(self, tab: Tab, kind: str, x: float, y: float, deadline: float, **more: Any) -> None:
        parameters = {"type": kind, "x": x, "y": y, **more}
        try:
            tab.call("Input.dispatchMouseEvent", parameters, deadline=deadline)
        except LateError:
            if not tab.blocked():  # else it showed a dialog, as it may
                raise

    def _click(self, tab: Tab, step: Fields, deadline: float) -> Fields:
        x, y, what = self._point(tab, step, deadline)
        if what.startswith("option "):  # of a list that the browser draws itself
            return self._select(tab, step, deadline)
        count = 2 if step.get("value") == "double" else 1
        button = "right" if step.get("value") == "right" else "left"
        self._mouse(tab, "mouseMoved", x, y, deadline)
        for number in range(1, count + 1):
            self._mouse(tab, "mousePressed", x, y, deadline, button=button, clickCount=number)
            if not tab.blocked():
                self._mouse(tab, "mouseReleased", x, y, deadline, button=button, clickCount=number)
        return {"what": what}

    def _hover(self, tab: Tab, step: Fields, deadline: float) -> Fields:
        x, y, what = self._point(tab, step, deadline)
        self._mouse(tab, "mouseMoved", x, y, deadline)
        return {"what": what}

    def _fill(self, tab: Tab, step: Fields, deadline: float) -> Fields:
        value = str(step.get("value") or "")
        until = min(deadline, time.monotonic() + ELEMENT_SECONDS)
        while True:
            element = self._element(tab, step, deadline)
            done = tab.on(element, "function(v){return gamebox.fill(this, v)}", value, deadline=deadline) or {}
            problem = done.get("problem")
            if problem is None:
                break
            error = StepError(
                "element_not_usable", target=step.get("target"), problem=problem, format=done.get("format")
            )
            if problem not in ("disabled", "readonly"):
                raise error
            self._pause(until, error, tab)
        if done.get("insert"):
            if value:
                tab.call("Input.insertText", {"text": value}, deadline=deadline)
            else:
                self._key(tab, "Delete", deadline)
            tab.on(
                element,
                "function(){this.dispatchEvent(new Event('change', {bubbles: true, composed: true}))}",
                deadline=deadline,
            )
        return {"what": done.get("what")}

    def _type(self, tab: Tab, step: Fields, deadline: float) -> Fields:
        what = ""
        if step.get("target"):
            element = self._element(tab, step, deadline)
            problem = tab.on(element, "function(){return gamebox.fillable(this)}", deadline=deadline)
            if problem:
                raise StepError("element_not_usable", target=step.get("target"), problem=problem)
            what = str(tab.on(element, "function(){this.focus();return gamebox.describe(this)}", deadline=deadline))
        for character in str(step.get("value") or "")[:TYPED_CHARS]:
            if character == "\n":
                self._key(tab, "Enter", deadline)
            elif character.isascii() and character.isprintable():
                self._key(tab, "Space" if character == " " else character, deadline)
            else:
                tab.call("Input.insertText", {"text": character}, deadline=deadline)
        return {"what": what}

    def _press(self, tab: Tab, step: Fields, deadline: float) -> Fields:
        what = ""
        if step.get("target"):
            element = self._element(tab, step, deadline)
            what = str(tab.on(element, "function(){this.focus();return gamebox.describe(this)}", deadline=deadline))
        self._key(tab, str(step["value"]), deadline)
        return {"what": what}

    def _key(self, tab: Tab, name: str, deadline: float) -> None:
        try:
            events = keys.parse(name)
        except ValueError as error:
            raise StepError("element_not_usable", problem="key", key=str(error)[:50]) from None
        for event in events:
            try:
                tab.call("Input.dispatchKeyEvent", event, deadline=deadline)
            except LateError:
                if not tab.blocked():
                    raise
                return

    def _select(self, tab: Tab, step: Fields, deadline: float) -> Fields:
        wanted = str(step.get("value") or "").split("\n")
        element = self._element(tab, step, deadline)
        done = tab.on(element, "function(w){return gamebox.select(this, w)}", wanted, deadline=deadline) or {}
        if done.get("problem"):
            fields = {
                "problem": done["problem"],
                "options": done.get("options", ""),
                "value": str(step.get("value"))[:200],
            }
            raise StepError("element_not_usable", target=step.get("target"), **fields)
        return {"what": done.get("what")}

    def _scroll(self, tab: Tab, step: Fields, deadline: float) -> Fields:
        way = str(step.get("value") or ("" if step.get("target") else "down"))
        if step.get("target"):
            element = self._element(tab, step, deadline)
            done = tab.on(element, "function(w){return gamebox.scroll(this, w)}", way, deadline=deadline)
        else:
            done = tab.run("function(w){return gamebox.scroll(null, w)}", way, deadline=deadline)
        return {"what": str(done.get("what") or "") if isinstance(done, dict) else ""}

    def _wait(self, tab: Tab, step: Fields, deadline: float) -> Fields:
        text, target = step.get("value"), step.get("target")
        error = StepError("element_not_found", target=target or "", text=text or "", waited=True)
        while True:
            if text and tab.run("function(t){return gamebox.has(t)}", str(text), deadline=deadline):
                return {}
            if target and not text:
                try:
                    if tab.object_of(str(target), deadline=deadline) is not None:
                        return {}
                except RefusedError as refused:
                    raise StepError("element_not_found", target=target, problem=str(refused)[:300]) from None
            self._pause(deadline - 0.3, error, tab)

    def _evaluate(self, tab: Tab, step: Fields, deadline: float) -> Fields:
        parameters = {
            "expression": str(step["value"]),
            "returnByValue": True,
            "awaitPromise": True,
            "userGesture": True,
            "replMode": True,
        }
        try:
            answer = tab.call("Runtime.evaluate", parameters, deadline=deadline)
        except LateError:
            if tab.dialog is None:
                raise
            return {"value": None}
        except RefusedError as error:
            raise StepError("script_failed", problem=str(error)) from None
        if answer.get("exceptionDetails"):
            raise StepError("script_failed", problem=exception_text(answer["exceptionDetails"]))
        result = answer.get("result") or {}
        value = result.get("value", result.get("unserializableValue"))
        text = "undefined" if result.get("type") == "undefined" else json.dumps(value, ensure_ascii=False)
        return {"value": text[:VALUE_CHARS]}

    # --- files -------------------------------------------------------------------------------------------------------------

    def _upload(self, tab: Tab, step: Fields, deadline: float) -> Fields:
        element = self._element(tab, step, deadline)
        if (
            tab.on(element, "function(){return this.tagName === 'INPUT' && this.type === 'file'}", deadline=deadline)
            is not True
        ):
            raise StepError("element_not_usable", target=step.get("target"), problem="not a field for files")
        path = self._received(str(step["file"]))
        tab.call("DOM.setFileInputFiles", {"objectId": element, "files": [path]}, deadline=deadline)
        return {"what": str(tab.on(element, "function(){return gamebox.describe(this)}", deadline=deadline))}

    def _download(self, tab: Tab, step: Fields, deadline: float) -> Fields:
        downloads = self._tabs.downloads
        downloads.begin()
        try:
            target, what = str(step.get("target") or ""), ""
            if target.startswith(("http://", "https://")):
                self._tabs.tools.send("Page.navigate", {"url": target}, tab.session)
            else:
                what = str(self._click(tab, {"target": target}, deadline).get("what"))
            until = min(deadline - 0.3, time.monotonic() + DOWNLOAD_SECONDS)
            started = min(until, time.monotonic() + ELEMENT_SECONDS)
            if not self._tabs.tools.wait_until(lambda: downloads.name is not None, started, tab.blocked):
                raise StepError("element_not_usable", target=target, problem="no_download")
            if not self._tabs.tools.wait_until(lambda: downloads.ended, until, tab.blocked):
                raise StepError("timeout", seconds=DOWNLOAD_SECONDS)
            if downloads.problem:
                raise StepError("element_not_usable", target=target, problem=downloads.problem, limit=downloads.limit)
            size = os.path.getsize(downloads.path)
            return {"what": what, "download": {"name": downloads.name, "size_bytes": size}}
        finally:
            downloads.end()
