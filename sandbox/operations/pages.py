"""The operations on web pages: reading one, and using one in the browser of the sandbox."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sandbox.text.excerpt import SHOWN_CHARS, first_lines, first_part
from sandbox.text.wording import one_line

from .base import Excerpt, Path, PythonType, Request
from .result import Result
from .table import operation

_MOST_LINKS_SHARE = 4  # a quarter of the room is for links
_MOST_REPORTS = 10
_BROWSER_SECONDS = 45.0  # how long the guest may start a browser, and end one that hangs
_IMAGE_BYTES = 3_500_000  # what providers of models take


class Link(Result):
    text: str
    url: str


class ConsoleMessage(Result):
    """What a page wrote to its console: ``level`` is error, warning or log, ``place`` a URL with a line."""

    level: str
    text: str
    place: str = ""


class FailedRequest(Result):
    """A request of a page that failed, or was answered with an error."""

    method: str
    url: str
    problem: str


class PageDialog(Result):
    """A dialog of a page: alert, confirm, prompt or beforeunload."""

    type: str
    message: str


class PageTab(Result):
    number: int
    url: str
    current: bool = False


def _reports(
    console: tuple[ConsoleMessage, ...],
    failed: tuple[FailedRequest, ...],
    dialogs: tuple[PageDialog, ...],
    dialog: PageDialog | None,
    tabs: tuple[PageTab, ...],
    complete: bool,
) -> list[str]:
    """Return lines on what a page reported, the errors first."""
    order = {"error": 0, "warning": 1}
    lines = [
        f"console {each.level}: {each.text}" + (f" ({each.place})" if each.place else "")
        for each in sorted(console, key=lambda message: order.get(message.level, 2))[:_MOST_REPORTS]
    ]
    lines += [f"request failed: {each.method} {each.url}: {each.problem}" for each in failed[:_MOST_REPORTS]]
    lines += [
        f"dialog, accepted: {each.type} {each.message!r}" for each in dialogs[:_MOST_REPORTS] if each.type == "alert"
    ]
    if dialog is not None:
        lines.append(f"dialog, waits for an answer: {dialog.type} {dialog.message!r}")
    if len(tabs) > 1:
        listed = ", ".join(f"{tab.number}{' (current)' if tab.current else ''}: {tab.url}" for tab in tabs)
        lines.append(f"tabs: {listed}")
    if not complete:
        lines.append("the page was still loading")
    return [f"[{one_line(line)}]" for line in lines]  # a page may write lines that look like ours


class BrowseResult(Excerpt):
    """``text`` is the readable page from ``offset`` on; ``total_chars`` is the length of the whole page.

    ``browser`` says whether the page was opened in a browser. Then ``outline`` is its accessibility outline, with references
    for ``browse_interact``; ``console``, ``failed_requests``, ``dialogs`` and ``tabs`` are what the page reported and opened,
    ``dialog`` one that waits for an answer; ``complete`` is false if it was still loading.
    """

    url: str
    final_url: str = ""
    status: int | None = None
    content_type: str = ""
    title: str = ""
    text: str = ""
    links: tuple[Link, ...] = ()
    offset: int = 0
    total_chars: int = 0
    size_bytes: int = 0
    truncated: bool = False
    redirects: tuple[str, ...] = ()
    browser: bool = False
    outline: str = ""
    outline_truncated: bool = False
    console: tuple[ConsoleMessage, ...] = ()
    failed_requests: tuple[FailedRequest, ...] = ()
    dialogs: tuple[PageDialog, ...] = ()
    dialog: PageDialog | None = None
    tabs: tuple[PageTab, ...] = ()
    complete: bool = True

    @model_validator(mode="after")
    def _sane(self) -> BrowseResult:
        if self.status is not None and not 100 <= self.status <= 999:
            raise ValueError("status is not an HTTP status")
        return self

    def to_text(self, chars: int = SHOWN_CHARS) -> str:
        """Return a status line, what the page reported, its outline or its text and links; then how to read on if it goes on."""
        if self.browser and not self.offset and self.outline:
            return self._outline_text(chars)
        head = f"[{self.status} {self.final_url or self.url} {self.content_type}]"
        links = [f"[{i}] {link.text}: {link.url}" for i, link in enumerate(self.links, 1)]
        if links:
            shown = first_lines(links, chars // _MOST_LINKS_SHARE)
            links = [*shown, *([f"[... and {len(links) - len(shown)} more links]"] if len(shown) < len(links) else [])]
        listed = "\n".join(links)
        text = first_part(self.text, max(chars - len(listed), chars // 2))
        end = self.offset + len(text)
        cut = self.truncated or len(text) < len(self.text)
        more = f"; read on with offset={end}" if end < self.total_chars else ""
        where = f"[characters {self.offset}-{end} of {self.total_chars}{more}]" if cut else ""
        return "\n".join(part for part in (head, self.title, text, listed, where) if part)

    def _outline_text(self, chars: int) -> str:
        """Return what an agent that uses the page needs: of a page that is mostly text, the text as well."""
        head = f"[{self.status} {self.final_url or self.url} {self.content_type}, in the browser]"
        told = _reports(self.console, self.failed_requests, self.dialogs, self.dialog, self.tabs, self.complete)
        outline = first_part(self.outline, chars // 2)
        cut = "\n[the outline goes on]" if self.outline_truncated or len(outline) < len(self.outline) else ""
        text = first_part(self.text, max(chars - len(outline) - sum(map(len, told)), chars // 4))
        end = self.offset + len(text)
        goes_on = end < self.total_chars
        more = f"[characters {self.offset}-{end} of {self.total_chars}; read on with offset={end}]" if goes_on else ""
        parts = (head, self.title, *told, "[outline]", outline + cut, "[text]", text, more)
        return "\n".join(part for part in parts if part)


@operation("browse", BrowseResult, repeatable=True)
class Browse(Request):
    """Open a web page and read it as text with its links.

    Reaches the sandbox's own servers (http://127.0.0.1:PORT/) and, if the sandbox has a network, the internet. Redirects
    are followed; a page that is not text is described. Read the rest of a long page with offset. A page that is opened in
    the browser also returns console errors, failed requests, and an outline with references (as in e5).
    """

    url: str = Field(min_length=1, max_length=8192, description="http:// or https:// address.")
    offset: int = Field(0, ge=0, description="Character of the text to start at.")
    max_chars: int = Field(20000, ge=1, le=200000, description="Maximum number of characters of text.")
    raw: bool = Field(False, description="Return the body as it is, instead of readable text.")
    browser: bool | None = Field(
        None,
        description="Run the page's scripts, in the browser. By default only if there is a browser, and the page comes from the "
        "sandbox itself or has almost no text without its scripts.",
    )
    timeout_seconds: float = Field(30, gt=0, le=600, description="Give up after this many seconds.")

    def problem(self) -> str | None:
        return "raw=true is the body as the server sends it, without a browser" if self.raw and self.browser else None

    def silence_seconds(self) -> float:
        """See the base class; the guest gives up by itself, a little later on a busy machine."""
        return self.timeout_seconds * 2 + _BROWSER_SECONDS  # at first without the browser, then in it


Action = Literal[
    "goto", "back", "click", "fill", "type", "select", "press", "scroll", "hover", "wait", "evaluate", "upload", "download",
    "tab", "close_tab", "dialog",
]  # fmt: skip
_NEED_TARGET = ("click", "fill", "select", "hover", "upload", "download")
_NEED_VALUE = ("goto", "fill", "type", "select", "press", "evaluate", "upload", "download", "tab")


class PageStep(BaseModel):
    """One step in a page."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    action: Action = Field(description="What to do.")
    target: str | None = Field(
        None,
        min_length=1,
        max_length=2000,
        description="Element: a reference of the outline, as in e5, or a CSS selector. For download also a URL.",
    )
    value: str | None = Field(
        None,
        max_length=100_000,
        description="goto: URL. fill, type: text. select: label of an option (several: one per line). press: key, as in Enter or "
        "Control+A. click: double or right. scroll: up, down, top, bottom, left or right. wait: text that should appear (or give "
        "target). evaluate: JavaScript. upload: path of a file to choose. download: path to save to. tab, close_tab: number of "
        "a tab (tab also: new). dialog: accept, dismiss, or the answer to a prompt.",
    )

    def problem(self) -> str | None:
        """Return why the arguments do not fit each other, or None."""
        if self.action in _NEED_TARGET and self.target is None:
            return f"the {self.action} step needs a target"
        if self.action in _NEED_VALUE and self.value is None:
            return f"the {self.action} step needs a value"
        if self.action == "wait" and not self.value and not self.target:
            return "the wait step needs a value (text) or a target (element)"
        if self.action == "click" and self.value not in (None, "", "double", "right", "left"):
            return "the value of a click step can only be double or right"
        if self.action == "scroll" and self.value not in (None, "", "up", "down", "top", "bottom", "left", "right"):
            return "the value of a scroll step can only be up, down, top, bottom, left or right"
        return None


def _listed(value: Any) -> Any:
    """Return one step as a list of steps; a tuple, which strict checks take as well."""
    if isinstance(value, Mapping | PageStep):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _bound_items(schema: dict[str, Any]) -> None:
    """Name the bounds of a list as those of lists: behind a validator pydantic names them as those of a text."""
    for name in ("min", "max"):
        schema[f"{name}Items"] = schema.pop(f"{name}Length")


class StepResult(Result):
    """``what`` is the element of a step, ``changes`` what it changed; outline lines that disappeared are marked "-", new ones "+".

    ``value`` is what ``evaluate`` returned, as JSON; ``path`` and ``size_bytes`` are of a file that was downloaded.
    """

    action: str
    what: str = ""
    changes: tuple[str, ...] = ()
    value: str | None = None
    path: str | None = None
    size_bytes: int | None = None

    def words(self) -> str:
        """Return the step and what it changed as lines."""
        saved = f" saved {self.path} ({self.size_bytes} bytes)" if self.path else ""
        head = one_line(f"{self.action}{f' {self.what}' if self.what else ''}{saved}")
        value = [f"  = {one_line(self.value)}"] if self.value is not None else []
        lines = [f"  {one_line(change)}" for change in self.changes] or ([] if value or saved else ["  (nothing changed)"])
        return "\n".join((head, *value, *lines))


class InteractResult(Excerpt):
    """What each step did, and the page after the last one; for the other fields see ``BrowseResult``."""

    steps: tuple[StepResult, ...] = ()
    final_url: str = ""
    status: int | None = None
    title: str = ""
    outline: str = ""
    outline_truncated: bool = False
    console: tuple[ConsoleMessage, ...] = ()
    failed_requests: tuple[FailedRequest, ...] = ()
    dialogs: tuple[PageDialog, ...] = ()
    dialog: PageDialog | None = None
    tabs: tuple[PageTab, ...] = ()
    complete: bool = True

    def to_text(self, chars: int = SHOWN_CHARS) -> str:
        """Return the steps with what they changed, what the page reported, and its outline."""
        told = _reports(self.console, self.failed_requests, self.dialogs, self.dialog, self.tabs, self.complete)
        steps = first_part("\n".join(step.words() for step in self.steps), chars // 2)
        outline = first_part(self.outline, max(chars - len(steps), chars // 3))
        cut = "\n[the outline goes on]" if self.outline_truncated or len(outline) < len(self.outline) else ""
        parts = (steps, f"[{self.final_url}]" if self.final_url else "", self.title, *told, outline + cut)
        return "\n".join(part for part in parts if part)


@operation("browse_interact", InteractResult, changes_files=True, in_every_sandbox=False)
class BrowseInteract(Request):
    """Act in the page that is open in the browser: click, fill in, wait, and the like, one step after the other.

    Open a page first, with browse and browser=true, or with a goto step. Each step waits for its element and then for the page,
    and answers with what it changed; the first one that fails ends the call. Alerts are accepted; confirm and prompt wait for a
    dialog step. Pages, cookies and tabs stay from call to call.
    """

    steps: Annotated[
        tuple[PageStep, ...],
        BeforeValidator(_listed),
        PythonType("Sequence[Mapping[str, Any]] | Mapping[str, Any]"),
        Field(
            min_length=1,
            max_length=50,
            description='The steps, as in [{"action": "fill", "target": "e3", "value": "Ann"}].',
            json_schema_extra=_bound_items,
        ),
    ]
    max_chars: int = Field(8000, ge=0, le=200000, description="Maximum number of characters of the outline at the end.")
    timeout_seconds: float = Field(
        30, gt=0, le=600, description="Give up after this many seconds, for all steps together."
    )

    def problem(self) -> str | None:
        return next((problem for step in self.steps if (problem := step.problem()) is not None), None)

    def silence_seconds(self) -> float:
        """See the base class."""
        return self.timeout_seconds + _BROWSER_SECONDS


class ScreenshotResult(Result):
    """A picture of the page: a PNG file at ``path``, and the same as ``image`` unless it is too large for models.

    ``truncated`` says that the page goes on beyond the picture.
    """

    path: str
    final_url: str = ""
    width: int = 0
    height: int = 0
    size_bytes: int = 0
    truncated: bool = False
    image: dict[str, str] | None = None

    def to_text(self, chars: int = SHOWN_CHARS) -> str:  # noqa: ARG002
        """Return a line on the picture; the picture itself goes beside the text."""
        cut = "; the page goes on below" if self.truncated else ""
        return f"[{self.path}: {self.width}x{self.height} pixels, {self.size_bytes} bytes, of {self.final_url}{cut}]"


@operation("screenshot", ScreenshotResult, changes_files=True, in_every_sandbox=False)
class Screenshot(Request):
    """Take a picture of the page that is open in the browser: what its window shows, an element, or the full page.

    The picture is a PNG file in the sandbox, and part of the result for models that see images.
    """

    target: str | None = Field(
        None,
        min_length=1,
        max_length=2000,
        description="Element: a reference of the outline, as in e5, or a CSS selector.",
    )
    full: bool = Field(False, description="The full page, not only what its window shows.")
    path: Path | None = Field(None, description="File to write; by default a new one in /tmp.")
    timeout_seconds: float = Field(30, gt=0, le=600, description="Give up after this many seconds.")

    def problem(self) -> str | None:
        return "target and full exclude each other" if self.target is not None and self.full else None

    def guest_arguments(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True)

    def silence_seconds(self) -> float:
        """See the base class."""
        return self.timeout_seconds + _BROWSER_SECONDS

    def result_fields(self, fields: dict[str, Any], blob: bytes, reply: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """See the base class; over a service, the picture is in the result already."""
        if blob and len(blob) <= _IMAGE_BYTES:
            fields["image"] = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(blob).decode()}
        return fields
