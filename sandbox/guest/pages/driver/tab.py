"""One tab: what its page does (requests, messages, dialogs), and calls to it. All that a page can repeat without end is bounded."""

from __future__ import annotations

import time
from typing import Any

from . import page_script
from .devtools import DevTools, LateError, RefusedError

MOST_MESSAGES = 50  # of the console, for one request
MOST_FAILED = 50  # requests of a page
MOST_DIALOGS = 20
MOST_PAGES = 20  # that follow each other within one request or step: as many as redirects of a server
MOST_PENDING = 2000
PAGE_BYTES = 64 << 20  # of one page with all that it loads, as the browser holds them
MESSAGE_CHARS, URL_CHARS = 1000, 2048
WINDOW = {"width": 1280, "height": 800}
QUICK_SECONDS = 1.5
REQUEST_SECONDS = 1.0  # until a page is requested that was asked for; it takes 0.01, or 0.1 on a busy machine
ACCEPTED = ("alert", "beforeunload")  # dialogs with nothing to decide
LEVELS = {"error": "error", "warning": "warning", "assert": "error"}
# Requests that a page goes on with for good.
_ENDLESS = frozenset({"EventSource", "WebSocket", "Media", "Ping", "Prefetch", "Other"})


class Tab:
    """A tab, with its number for models. Events arrive by ``take``; ``call`` waits for an answer."""

    def __init__(self, tools: DevTools, number: int, target: str, session: str) -> None:
        self.number = number
        self.target = target
        self.session = session
        self._tools = tools
        self._context: int | None = None
        self.url = ""
        self.requested = ""  # the URL that it was last opened with
        self.frame = ""
        self.loaded = True
        self.loading_since = 0.0
        self.status: int | None = None
        self.content_type = ""
        self.refused = False
        self.error = ""
        self.redirects: list[str] = []
        self.bytes = 0
        self.too_large = False
        self.crashed = False
        self.gone = False  # the browser has closed it, as when its page did
        self.unreachable = False  # it shows the browser's own page about an error
        self.dialog: dict[str, str] | None = None
        self._pending: dict[str, str] = {}
        self.asked_for = self.asked_url = ""  # the document that a page or a call asked for last, and its URL once it was requested
        self._asked_at = 0.0
        self._overtaken = False  # whether another page was shown, or a download began, since it was asked for
        self.shown: dict[str, bool] = {}  # documents since the last navigation; True: another one was already asked for
        self._request_urls: dict[str, str] = {}
        self.forget()

    def forget(self) -> None:
        """Begin to collect anew what an answer tells."""
        self.console: list[dict[str, str]] = []
        self.console_count = 0
        self.failed: list[dict[str, Any]] = []
        self.failed_count = 0
        self.dialogs: list[dict[str, str]] = []
        self.dialog_count = 0
        self.begin()

    def begin(self) -> None:
        """Count anew what a page can repeat without end: for a request, or a step of one."""
        self.alerts = self.pages = 0

    def expect(self, url: str) -> None:
        """Forget the page, as another is about to be asked for, and requests whose end nobody will report."""
        self.requested, self.loaded, self.alerts, self.unreachable = url, False, 0, False
        self._pending.clear()
        self._request_urls.clear()
        self.redirects, self.status, self.refused, self.error, self.bytes, self.too_large = [], None, False, "", 0, False
        self.asked_for, self.asked_url, self._asked_at, self._overtaken = "", "", time.monotonic(), False
        self.shown.clear()

    def prepare(self) -> None:
        """Have the tab report what it does, and let its page begin."""
        send = self._tools.send
        for method, parameters in (
            ("Page.enable", {}),
            ("Runtime.enable", {}),
            ("Log.enable", {}),
            ("Network.enable", {"maxTotalBufferSize": 1 << 20, "maxResourceBufferSize": 1 << 20, "maxPostDataSize": 0}),
            ("Network.setCacheDisabled", {"cacheDisabled": True}),  # a file that was changed is not shown as it was before
            ("Emulation.setDeviceMetricsOverride", {**WINDOW, "deviceScaleFactor": 1, "mobile": False}),
            ("Page.setInterceptFileChooserDialog", {"enabled": True}),
            ("Target.setAutoAttach", {"autoAttach": False, "waitForDebuggerOnStart": False, "flatten": True}),
            ("Runtime.runIfWaitingForDebugger", {}),
        ):
            send(method, parameters, self.session)

    # --- events ------------------------------------------------------------------------------------------------------------

    def take(self, method: str, values: dict[str, Any]) -> None:
        """Take an event of this tab."""
        handler = getattr(self, "_on_" + method.replace(".", "_").lower(), None)
        if handler is not None:
            handler(values)

    def _on_page_framestartednavigating(self, values: dict[str, Any]) -> None:
        same = ("sameDocument", "historySameDocument")
        document = str(values.get("loaderId"))
        main = values.get("frameId") in (self.frame, self.target)
        if main and values.get("navigationType") not in same and document != self.asked_for:
            self.asked_for, self.asked_url, self._asked_at = document, "", time.monotonic()
            self._overtaken = False

    def _on_page_framenavigated(self, values: dict[str, Any]) -> None:
        frame = values.get("frame") or {}
        if frame.get("parentId"):
            return
        self.pages += 1
        self.frame = str(frame.get("id") or "")
        self.unreachable = bool(frame.get("unreachableUrl"))
        self.url = (str(frame.get("unreachableUrl") or "") or str(frame.get("url") or ""))[:URL_CHARS]
        self._context = None
        document = str(frame.get("loaderId") or "")
        if len(self.shown) < MOST_PAGES:
            self.shown[document] = self.asked_for != document
        self._overtaken |= self.asked_for != document

    def _on_page_downloadwillbegin(self, _: dict[str, Any]) -> None:
        self._overtaken = True

    def _on_page_navigatedwithindocument(self, values: dict[str, Any]) -> None:
        if values.get("frameId") == self.frame:
            self.url = str(values.get("url"))[:URL_CHARS]

    def _on_page_framestartedloading(self, values: dict[str, Any]) -> None:
        if values.get("frameId") in (self.frame, self.target):
            self.loaded = False
            self.loading_since = time.monotonic()

    def _on_page_framestoppedloading(self, values: dict[str, Any]) -> None:
        if values.get("frameId") in (self.frame, self.target):
            self.loaded = True

    def _on_page_loadeventfired(self, _: dict[str, Any]) -> None:
        self.loaded = True

    def _on_runtime_executioncontextscleared(self, _: dict[str, Any]) -> None:
        self._context = None

    def _on_runtime_executioncontextdestroyed(self, values: dict[str, Any]) -> None:
        if values.get("executionContextId") == self._context:
            self._context = None

    def _on_network_requestwillbesent(self, values: dict[str, Any]) -> None:
        ident, request = str(values.get("requestId")), values.get("request") or {}
        url = str(request.get("url"))[:URL_CHARS]
        is_page = values.get("type") == "Document" and values.get("frameId") in (self.frame, self.target)
        if is_page:
            if values.get("redirectResponse"):
                self.redirects.append(url)
                del self.redirects[20:]
            else:
                self.redirects, self.bytes, self.too_large = [], 0, False
                self.status, self.content_type, self.refused, self.error = None, "", False, ""
            self.asked_for, self.asked_url = ident, url.partition("#")[0]
        if len(self._pending) < MOST_PENDING:
            self._pending[ident] = str(values.get("type"))
            self._request_urls[ident] = f"{str(request.get('method'))[:20]} {url}"

    def _on_network_responsereceived(self, values: dict[str, Any]) -> None:
        response = values.get("response") or {}
        status = response.get("status")
        headers = response.get("headers") or {}
        refused = any(name.lower() == "x-gamebox" and value == "refused" for name, value in headers.items())
        if values.get("requestId") == self.asked_for:
            self.status = status if isinstance(status, int) else None
            self.content_type = str(response.get("mimeType") or "")[:200]
            self.refused = refused
        elif isinstance(status, int) and status >= 400:
            problem = "refused by the sandbox" if refused else f"status {status}"
            self._add_failed(str(values.get("requestId")), str(response.get("url")), problem, status)

    def _on_network_datareceived(self, values: dict[str, Any]) -> None:
        length = values.get("dataLength")
        self.bytes += length if isinstance(length, int) else 0
        if self.bytes > PAGE_BYTES and not self.too_large:
            self.too_large = True
            self._tools.send("Page.stopLoading", {}, self.session)

    def _on_network_loadingfinished(self, values: dict[str, Any]) -> None:
        self._pending.pop(str(values.get("requestId")), None)
        self._request_urls.pop(str(values.get("requestId")), None)

    def _on_network_loadingfailed(self, values: dict[str, Any]) -> None:
        ident = str(values.get("requestId"))
        self._pending.pop(ident, None)
        problem = str(values.get("blockedReason") or values.get("errorText") or "failed")[:200]
        if ident == self.asked_for:
            self.error = problem
        if not values.get("canceled"):
            self._add_failed(ident, "", problem, None)
        self._request_urls.pop(ident, None)

    def _add_failed(self, ident: str, url: str, problem: str, status: int | None) -> None:
        if (url or self._request_urls.get(ident, "")).endswith(
            "/favicon.ico"
        ):  # which the browser asked for, not the page
            return
        self.failed_count += 1
        if len(self.failed) < MOST_FAILED:
            method, _, known = self._request_urls.get(ident, "").partition(" ")
            found = {"method": method or "GET", "url": (url or known)[:URL_CHARS], "problem": problem, "status": status}
            self.failed.append(found)

    def _on_runtime_consoleapicalled(self, values: dict[str, Any]) -> None:
        kind = str(values.get("type"))
        texts = [_text_of(each) for each in (values.get("args") or [])[:20]]
        self._add_message(LEVELS.get(kind, "log"), " ".join(texts), _place_of(values.get("stackTrace")))

    def _on_runtime_exceptionthrown(self, values: dict[str, Any]) -> None:
        details = values.get("exceptionDetails") or {}
        self._add_message("error", exception_text(details), _place_of(details.get("stackTrace")) or _place(details))

    def _on_log_entryadded(self, values: dict[str, Any]) -> None:
        entry = values.get("entry") or {}
        if entry.get("source") == "network" or entry.get("level") not in ("error", "warning"):
            return  # requests that failed have a list of their own
        self._add_message(str(entry.get("level")), str(entry.get("text")), _place(entry))

    def _add_message(self, level: str, text: str, place: str) -> None:
        self.console_count += 1
        if len(self.console) >= MOST_MESSAGES:
            if level != "error" or (spare := next((m for m in self.console if m["level"] != "error"), None)) is None:
                return
            self.console.remove(spare)
        self.console.append({"level": level, "text": text[:MESSAGE_CHARS], "place": place[:300]})

    def _on_page_javascriptdialogopening(self, values: dict[str, Any]) -> None:
        kind, message = str(values.get("type")), str(values.get("message"))[:MESSAGE_CHARS]
        dialog = {"type": kind, "message": message, "default": str(values.get("defaultPrompt") or "")[:200]}
        self.dialog_count += 1
        self.alerts += 1
        if len(self.dialogs) < MOST_DIALOGS:
            self.dialogs.append({"type": kind, "message": message})
        if kind in ACCEPTED:  # the page goes on
            self._tools.send("Page.handleJavaScriptDialog", {"accept": True}, self.session)
        else:
            self.dialog = dialog

    def _on_page_javascriptdialogclosed(self, _: dict[str, Any]) -> None:
        self.dialog = None

    def _on_page_filechooseropened(self, values: dict[str, Any]) -> None:
        """Nothing is chosen: a step ``upload`` names the field."""

    def _on_inspector_targetcrashed(self, _: dict[str, Any]) -> None:
        self.crashed = True

    # --- calls -------------------------------------------------------------------------------------------------------------

    def blocked(self) -> bool:
        """Return whether the page cannot answer: it shows a dialog, has crashed, is gone, or does not rest."""
        return self.dialog is not None or self.crashed or self.gone or self.restless

    @property
    def forgotten(self) -> bool:
        """Whether the document that was asked for last is not requested although time enough has passed.

        Chromium says nothing of a navigation that it drops because another page is shown, or a download begins, before its request.
        """
        return self._overtaken and not self.asked_url and time.monotonic() > self._asked_at + REQUEST_SECONDS

    @property
    def restless(self) -> bool:
        """Whether the page shows alerts, or loads another page in its place, without end."""
        return self.alerts > MOST_DIALOGS or self.pages > MOST_PAGES

    def call(self, method: str, parameters: dict[str, Any] | None = None, *, deadline: float) -> dict[str, Any]:
        """Call a method of this tab. Raises LateError (also when a dialog opens meanwhile) and RefusedError."""
        return self._tools.call(method, parameters, self.session, deadline=deadline, interrupt=self.blocked)

    def run(self, function: str, *arguments: Any, deadline: float) -> Any:
        """Call a function of the page script and return what it returns, as JSON. Raises as ``call``."""
        return self._function(function, arguments, deadline, by_value=True).get("value")

    def object_of(self, target: str, *, deadline: float) -> str | None:
        """Return the browser's id of the element that ``target`` means (a reference or a CSS selector), or None."""
        found = self._function("function(t){return gamebox.find(t)}", (target,), deadline, by_value=False)
        ident = found.get("objectId")
        return str(ident) if ident else None

    def on(self, element: str, function: str, *arguments: Any, deadline: float) -> Any:
        """Call a JavaScript function with an element as ``this``. Returns what it returns, as JSON."""
        return self._call_on({"objectId": element}, function, arguments, deadline, by_value=True).get("value")

    def _function(
        self, function: str, arguments: tuple[Any, ...], deadline: float, *, by_value: bool
    ) -> dict[str, Any]:
        for attempt in (1, 2, 3):
            try:
                context = self._world(deadline)
                return self._call_on({"executionContextId": context}, function, arguments, deadline, by_value)
            except RefusedError as error:
                if "context" not in str(error).lower():
                    raise
                if attempt == 3:
                    raise LateError("the page is replaced again and again") from None
                self._context = None  # the page was replaced meanwhile
        raise AssertionError

    def _call_on(
        self, where: dict[str, Any], function: str, arguments: tuple[Any, ...], deadline: float, by_value: bool
    ) -> dict[str, Any]:
        parameters = {
            "functionDeclaration": function,
            "arguments": [{"value": each} for each in arguments],
            "returnByValue": by_value,
            "awaitPromise": True,
            "userGesture": True,
            **where,
        }
        answer = self.call("Runtime.callFunctionOn", parameters, deadline=deadline)
        if answer.get("exceptionDetails"):
            raise RefusedError(exception_text(answer["exceptionDetails"]))
        result = answer.get("result")
        return result if isinstance(result, dict) else {}

    def _world(self, deadline: float) -> int:
        """Return the context of the page script's own world, made anew for each page."""
        if self._context is None:
            parameters = {"frameId": self.frame or self.target, "worldName": "gamebox", "grantUniveralAccess": True}
            context = self.call("Page.createIsolatedWorld", parameters, deadline=deadline).get("executionContextId")
            if not isinstance(context, int):
                raise RefusedError("the page has no context")
            script = {"expression": page_script.SCRIPT, "contextId": context}
            self.call("Runtime.evaluate", script, deadline=deadline)
            self._context = context
        return self._context

    def busy(self) -> bool:
        """Return whether the page still loads what it asked for."""
        return not self.loaded or any(kind not in _ENDLESS for kind in self._pending.values())

    def settle(self, deadline: float, quiet_seconds: float = QUICK_SECONDS) -> None:
        """Wait until the page has loaded and drawn what follows from that; at most until ``deadline``.

        After it has loaded, requests of its scripts get ``quiet_seconds``. Raises LateError if it does not load by then.
        """
        if not self._tools.wait_until(lambda: self.loaded, deadline, self.blocked):
            if self.blocked() or self.too_large:
                return
            raise LateError("the page does not end to load")
        self._run_settle(deadline)
        if self.busy():
            self._tools.wait_until(
                lambda: not self.busy(), min(deadline, time.monotonic() + quiet_seconds), self.blocked
            )
            self._run_settle(deadline)

    def _run_settle(self, deadline: float) -> None:
        try:
            self.run("function(){return gamebox.settle()}", deadline=deadline)
        except RefusedError:  # it was replaced while it drew
            pass
        except LateError:
            if not self.blocked():
                raise


def exception_text(details: Any) -> str:
    """Return what a JavaScript exception says, in a line or two."""
    if not isinstance(details, dict):
        return "unknown"
    thrown = details.get("exception")
    text = _text_of(thrown) if isinstance(thrown, dict) else str(details.get("text"))
    return text.partition("\n    at ")[0][:MESSAGE_CHARS]


def _text_of(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    if "value" in value:
        return str(value["value"])[:MESSAGE_CHARS]
    return str(value.get("description") or value.get("unserializableValue") or value.get("type"))[:MESSAGE_CHARS]


def _place_of(trace: Any) -> str:
    frames = trace.get("callFrames") if isinstance(trace, dict) else None
    return _place(frames[0]) if isinstance(frames, list) and frames and isinstance(frames[0], dict) else ""


def _place(found: dict[str, Any]) -> str:
    url, line = found.get("url"), found.get("lineNumber")
    if not url:
        return ""
    return f"{str(url)[:250]}:{line + 1}" if isinstance(line, int) else str(url)[:250]
