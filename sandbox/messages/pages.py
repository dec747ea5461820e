"""Word faults of pages in the browser, of its steps, and of what the browser itself cannot do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sandbox.errors import ErrorCode
from sandbox.readers import Hint
from sandbox.text.wording import Wording, one_line, size

Fields = Mapping[str, Any]
MOST_PAGES = 20  # in one tab within one request: the browser's driver has the same


def _not_available(f: Fields) -> Wording:
    if f.get("isolated") is False:
        return Wording(
            "Pages are opened in a browser only inside a container: here the browser would run as the user of this host.",
            Hint(
                "Read pages with browse, without browser=true. If the task needs a browser, say so at the end.",
                cli="Leave out --local, and use --image gamebox/browser.",
                host="Use DockerEnvironment(image='gamebox/browser').",
            ),
            "browse",
        )
    return Wording(
        "This image has no Chromium, so no page can be opened in a browser.",
        Hint(
            "Read pages with browse, without browser=true. If the task needs a browser, say so at the end.",
            cli="Make the image with gamebox setup --browser, and use --image gamebox/browser.",
            host="Make the image with `gamebox setup --browser`, and use DockerEnvironment(image='gamebox/browser').",
        ),
        "browse",
    )


def _failed(f: Fields) -> Wording:
    again = "Call it again: the browser starts afresh, with one empty tab and no cookies."
    if f.get("hung"):
        return Wording("The browser did not answer and was stopped.", again, "browse", True)
    if f.get("crashed"):
        return Wording(
            "The page crashed, and its tab was closed.",
            "Open another page, or this one again, with browse.",
            "browse",
            True,
        )
    if f.get("memory"):
        return Wording(
            "The browser used up the sandbox's memory and was stopped.",
            "Free memory (stop commands that are not needed) or open a smaller page; the next call starts the browser again.",
            "processes",
            True,
        )
    cause = one_line(str(f.get("failed") or f.get("problem") or f.get("reason") or "it ended"))
    log = f" It wrote: {one_line(str(f['log']))}" if f.get("log") else ""
    return Wording(f"The browser failed: {cause}.{log}", again, "browse", True)


def _target(f: Fields) -> str:
    return repr(one_line(str(f.get("target") or ""))[:200])


def _not_found(f: Fields) -> Wording:
    if f.get("waited"):
        what = f"The text {f['text']!r}" if f.get("text") else f"The element {_target(f)}"
        return Wording(
            f"{what} did not appear in the page in time.",
            "See in the result what the page shows now; wait again with a larger timeout_seconds, or do something else first.",
            "browse_interact",
            True,
        )
    if f.get("reference"):
        return Wording(
            f"The page has no element with the reference {_target(f)} now.",
            "References are valid until the page is replaced: take one from the outline in this result.",
            "browse_interact",
        )
    if f.get("problem"):
        return Wording(
            f"{_target(f)} is not a valid CSS selector: {one_line(str(f['problem']))}.",
            "Give a reference of the outline (as in e5) or a CSS selector.",
            "browse_interact",
        )
    return Wording(
        f"The page has no element that matches {_target(f)}.",
        "Take a reference from the outline in this result (as in e5), or another CSS selector.",
        "browse_interact",
    )


def _not_usable(f: Fields) -> Wording:
    maker = _USES.get(str(f.get("problem")))
    if maker is not None:
        return Wording(*maker(f), "browse_interact")
    return Wording(
        f"{_target(f)} cannot be used like this: it is {one_line(str(f.get('problem')))}.",
        "Choose another element of the outline, or another action.",
        "browse_interact",
    )


_USES: dict[str, Callable[[Fields], tuple[str, str]]] = {
    "hidden": lambda f: (
        f"{_target(f)} is not visible.",
        "Open what it is in first (a menu, a tab, a dialog of the page); the outline shows what is visible.",
    ),
    "disabled": lambda f: (
        f"{_target(f)} is disabled.",
        "Do first what enables it, such as filling in the required fields.",
    ),
    "readonly": lambda f: (f"{_target(f)} can only be read.", "Look for a button beside it that changes it."),
    "covered": lambda f: (
        f"{_target(f)} is covered by another element: {one_line(str(f.get('by')))}.",
        "Close or move what covers it, or act on that element.",
    ),
    "outside": lambda f: (f"{_target(f)} lies outside the window.", "Scroll to it first, with a scroll step."),
    "gone": lambda f: (f"{_target(f)} is no longer in the page.", "Take a reference from the outline in this result."),
    "value": lambda f: (
        f"The field {_target(f)} does not take this value.",
        f"Give it in the field's form, as in {f['format']!r}." if f.get("format") else "Give it in the field's form.",
    ),
    "no option": lambda f: (
        f"{_target(f)} has no option {str(f.get('value'))!r}.",
        f"Its options: {one_line(str(f.get('options')))}.",
    ),
    "one option": lambda f: (f"{_target(f)} takes one option.", "Give one label."),
    "not a select": lambda f: (
        f"{_target(f)} is not a list of options.",
        "Click it to open it, then click the option in the new outline.",
    ),
    "key": lambda f: (
        f"There is no key {str(f.get('key'))!r}.",
        "Give a name as in Enter, Tab, Escape, ArrowDown or Control+A, or one character.",
    ),
    "first_page": lambda _: ("There is no page before this one in the tab.", "Open a page with a goto step."),
    "no_page": lambda _: (
        "No page is open in the browser.",
        "Open one first: browse with browser=true, or a goto step of browse_interact.",
    ),
    "no_dialog": lambda _: ("No dialog is open.", "Go on with the next step; alerts are accepted automatically."),
    "no_tab": lambda f: (
        f"There is no tab {f.get('tab')!r}.",
        f"Tabs: {f.get('tabs')}. Give one of these numbers, or new.",
    ),
    "tab_closed": lambda _: (
        "The page closed its tab.",
        "See in the result what the current tab shows, and go on there; do the step again only if it was not done.",
    ),
    "too_many_tabs": lambda f: (
        f"There are {f.get('limit')} tabs, which is the limit.",
        "Close one with a step close_tab.",
    ),
    "no_download": lambda f: (
        f"{_target(f)} started no download.",
        "Click it if it only leads to another page, or give the URL of the file as target.",
    ),
    "download_cancelled": lambda _: (
        "The download broke off.",
        "Try it again, or fetch the file with run: curl -O URL.",
    ),
    "download_too_large": lambda f: (
        f"The file is larger than {size(f.get('limit'))}, which is the limit for a download.",
        "Fetch it with run: curl -O URL.",
    ),
}


def _dialog(f: Fields) -> Wording:
    kind = one_line(str(f.get("type")))
    answer = "dismiss, or the text to answer" if kind == "prompt" else "accept or dismiss"
    return Wording(
        f"The page waits for an answer to a dialog: {kind} {one_line(str(f.get('message')))!r}.",
        f"Answer it first: a step with action dialog and the value {answer}.",
        "browse_interact",
    )


def timed_out(f: Fields) -> Wording:
    """Word a page or a step that took too long in the browser."""
    seconds = f.get("seconds")
    allowed = f"{seconds:g} seconds" if isinstance(seconds, int | float) else "its time"
    pages = f.get("pages")
    if f.get("closed") and isinstance(pages, int | float) and pages > MOST_PAGES:
        return Wording(
            f"The page keeps reloading itself or opening another page in its place ({pages:g} times). Its tab was closed.",
            "Find what reloads it in its code (browse with raw=true), fix that and open it again, or open another page.",
            "browse",
        )
    if f.get("closed"):
        return Wording(
            f"The page did not answer within {allowed}: a script of it does not end. Its tab was closed.",
            "See in the page's code what runs without end; open it again with browse when that is fixed, or open another page.",
            "browse",
        )
    if f.get("browser_busy"):
        return Wording(
            f"The browser was busy with other calls for {allowed}.",
            "Call it again when they have ended.",
            retryable=True,
        )
    longer = f"timeout_seconds above {seconds:g}" if isinstance(seconds, int | float) else "a longer timeout_seconds"
    return Wording(
        f"The page did not answer within {allowed}; the result has what there is.",
        f"Call it again with {longer}, or look with screenshot at what the page shows.",
        retryable=True,
    )


FAULTS: dict[ErrorCode, Callable[[Fields], Wording]] = {
    ErrorCode.browser_not_available: _not_available,
    ErrorCode.browser_failed: _failed,
    ErrorCode.element_not_found: _not_found,
    ErrorCode.element_not_usable: _not_usable,
    ErrorCode.dialog_open: _dialog,
    ErrorCode.script_failed: lambda f: Wording(
        f"The JavaScript failed: {one_line(str(f.get('problem')))}.",
        "Correct the expression; the value of the last one is the result, and await works.",
        "browse_interact",
    ),
}
