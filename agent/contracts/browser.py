"""A text browser for the late contract: tabs with histories, controlled by calls such as ``goto("...")`` and
``click("3")``.

The sandbox's operation ``browse`` fetches the pages. Scripts of pages do not run, forms cannot be filled in, and there
are no pictures: calls that would need these are refused by name.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandbox.envelope import Failure
from sandbox.environment.base import Environment
from sandbox.errors import SandboxError, ToolError

MOST_CHARS, MOST_CALLS, MOST_TABS, MOST_PAST = 20_000, 20, 20, 100
BLANK = "about:blank"
CALLS = (
    "goto",
    "click",
    "go_back",
    "go_forward",
    "new_tab",
    "tab_focus",
    "tab_close",
    "scroll",
    "noop",
    "send_msg_to_user",
)
_HINT = f"These can be done: {', '.join(CALLS)}; click takes the number of a link. For anything else run a program in the sandbox."


@dataclass
class Tab:
    """The addresses of a tab, the current one, and the character from which its page is shown."""

    past: list[str] = field(default_factory=lambda: [BLANK])
    at: int = 0
    offset: int = 0

    @property
    def url(self) -> str:
        """The current address."""
        return self.past[self.at]

    def visit(self, url: str) -> None:
        """Go to another address, and forget those ahead."""
        self.past = [*self.past[: self.at + 1], url][-MOST_PAST:]
        self.at, self.offset = len(self.past) - 1, 0


class Browser:
    """The tabs of one agent. ``say`` sends a message to the user."""

    def __init__(self, environment: Environment, say: Callable[[str], Any]) -> None:
        self._environment = environment
        self._say = say
        self.reset()

    def reset(self) -> None:
        """Reset to one empty tab."""
        self.tabs = [Tab()]
        self.active = 0
        self._links: tuple[str, ...] = ()

    @property
    def tab(self) -> Tab:
        """The active tab."""
        return self.tabs[self.active]

    def do(self, browser_actions: str) -> dict[str, Any]:
        """Carry out the calls in order, up to the first that fails, and return the page that is then shown.

        Raises ToolError for an invalid or unsupported call, and SandboxError for a page that does not come.
        """
        calls = calls_of(browser_actions)
        if [name for name, _ in calls if name not in CALLS]:
            unknown = next(name for name, _ in calls if name not in CALLS)
            raise ToolError(f"This browser cannot do {unknown[:100]!r}.", _HINT)
        page: dict[str, Any] | None = None
        for name, args in calls:
            method = getattr(self, f"_{name}")
            try:
                inspect.signature(method).bind(*args)
            except TypeError as error:
                raise ToolError(f"{name} does not take {args!r:.200}.", _HINT) from error
            page = method(*args) or page
        return page if page is not None else self._shown()

    def page_fields(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Record a page that came in the active tab. Returns what is known about it, with the tabs."""
        self._links = tuple(str(link["url"]) for link in result.get("links") or ())
        url = str(result.get("final_url") or result.get("url") or self.tab.url)
        self.tab.past[self.tab.at] = url
        status = result.get("status")
        text = "\n".join(
            part for part in (str(result.get("title") or ""), str(result.get("text") or ""), _listed(result)) if part
        )
        if result.get("truncated"):
            text += f"\n[{result.get('total_chars')} characters in all; scroll(0, 1) shows what follows]"
        seen = {"text": text, "url": url, "status": status if isinstance(status, int) else 200, "tree": _tree(result)}
        return {**seen, **self.tab_fields()}

    def tab_fields(self) -> dict[str, Any]:
        """Return the tabs as data for an observation."""
        return {"open_pages_urls": [tab.url for tab in self.tabs], "active_page_index": self.active}

    def snapshot(self) -> dict[str, Any]:
        """Return everything as data, for ``restore``."""
        tabs = [{"past": list(tab.past), "at": tab.at, "offset": tab.offset} for tab in self.tabs]
        return {"tabs": tabs, "active": self.active, "links": list(self._links)}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Restore what ``snapshot`` returned. Raises KeyError, TypeError or IndexError for other data."""
        self.tabs = [Tab(list(tab["past"]), int(tab["at"]), int(tab["offset"])) for tab in data["tabs"]]
        self.active, self._links = int(data["active"]), tuple(data["links"])
        _ = [tab.url for tab in self.tabs], self.tab

    # --- the calls ------------------------------------------------------------------
    def _goto(self, url: str) -> dict[str, Any]:
        page = self._fetched(str(url))
        self.tab.visit(str(url))
        return self.page_fields(page)

    def _click(self, bid: str | int, *_more: Any) -> dict[str, Any]:
        number = str(bid)
        if not (number.isascii() and number.isdigit() and 0 < int(number[:6]) <= len(self._links)):
            there = f"1 to {len(self._links)}" if self._links else "none"
            raise ToolError(
                f"There is no link {number[:100]!r} on this page.", f"Its links have the numbers in brackets: {there}."
            )
        return self._goto(self._links[int(number) - 1])

    def _go_back(self) -> dict[str, Any]:
        return self._moved(-1)

    def _go_forward(self) -> dict[str, Any]:
        return self._moved(1)

    def _moved(self, by: int) -> dict[str, Any]:
        if not 0 <= self.tab.at + by < len(self.tab.past):
            raise ToolError("There is no page in that direction.", "Open one with goto.")
        page = self._fetched(self.tab.past[self.tab.at + by])
        self.tab.at, self.tab.offset = self.tab.at + by, 0
        return self.page_fields(page)

    def _new_tab(self) -> dict[str, Any]:
        if len(self.tabs) >= MOST_TABS:
            raise ToolError(f"There are {MOST_TABS} tabs, which is the maximum.", "Close one with tab_close.")
        self.tabs.append(Tab())
        return self._tab_focus(len(self.tabs) - 1)

    def _tab_focus(self, index: int) -> dict[str, Any]:
        if type(index) is not int or not 0 <= index < len(self.tabs):
            raise ToolError(f"There is no tab {index!r:.50}.", f"They are 0 to {len(self.tabs) - 1}.")
        self.active = index
        return self._shown()

    def _tab_close(self) -> dict[str, Any]:
        self.tabs.pop(self.active)
        self.tabs = self.tabs or [Tab()]
        return self._tab_focus(min(self.active, len(self.tabs) - 1))

    def _scroll(self, _across: float, down: float) -> dict[str, Any]:
        if not isinstance(down, int | float):
            raise ToolError(
                f"{down!r:.100} is not a way to scroll.", "Scroll down with scroll(0, 1), up with scroll(0, -1)."
            )
        self.tab.offset = max(0, self.tab.offset + (MOST_CHARS if down > 0 else -MOST_CHARS if down < 0 else 0))
        return self._shown()

    def _noop(self, *_more: Any) -> None:
        return None

    def _send_msg_to_user(self, text: str) -> None:
        self._say(str(text))

    # --- pages ------------------------------------------------------------------
    def _shown(self) -> dict[str, Any]:
        """Return the current page of the active tab."""
        return self.page_fields(self._fetched(self.tab.url, self.tab.offset))

    def _fetched(self, url: str, offset: int = 0) -> Mapping[str, Any]:
        """Fetch the page of the active tab. Raises SandboxError if it does not come."""
        if url == BLANK:
            return {"url": BLANK}
        answer = self._environment.execute("browse", {"url": url, "offset": offset, "max_chars": MOST_CHARS})
        if isinstance(answer, Failure):
            raise SandboxError(answer.code, answer.error, answer.hint)
        page: Mapping[str, Any] = answer.result.model_dump()
        return page


def calls_of(browser_actions: str) -> list[tuple[str, tuple[Any, ...]]]:
    """Parse a text of Python calls whose arguments are plain values. Raises ToolError. Nothing is evaluated."""
    try:
        body = ast.parse(browser_actions.strip()[:MOST_CHARS]).body
        found = [_call(each) for each in body]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        words = f"These are not calls of a browser: {browser_actions[:200]!r}."
        raise ToolError(words, 'Write them as goto("http://...").') from error
    if not 0 < len(found) <= MOST_CALLS:
        raise ToolError(f"There are {len(found)} calls; 1 to {MOST_CALLS} can be done at once.", "noop() does nothing.")
    return found


def _call(statement: ast.stmt) -> tuple[str, tuple[Any, ...]]:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError("no call")  # noqa: TRY004
    values: Sequence[ast.expr] = [*call.args, *(word.value for word in call.keywords)]
    return call.func.id, tuple(ast.literal_eval(value) for value in values)


def _listed(page: Mapping[str, Any]) -> str:
    return "\n".join(
        f"[{number}] {link['text']}: {link['url']}" for number, link in enumerate(page.get("links") or (), 1)
    )


def _tree(page: Mapping[str, Any]) -> dict[str, Any]:
    """Return the page as an accessibility tree in the form of Chrome's protocol: title, text, and a node for each
    link.
    """
    links = page.get("links") or ()
    parts = [("StaticText", str(page.get("text") or ""), "")]
    parts += [("link", str(link["text"]), str(number)) for number, link in enumerate(links, 1)]
    children = [str(number) for number in range(2, len(parts) + 2)]
    root = _node("1", "RootWebArea", str(page.get("title") or ""), children, "")
    return {
        "nodes": [root, *(_node(i, role, name, [], bid) for i, (role, name, bid) in zip(children, parts, strict=True))]
    }


def _node(ident: str, role: str, name: str, children: list[str], bid: str) -> dict[str, Any]:
    named = {"browsergym_id": bid} if bid else {}
    named_role = {"role": {"type": "role", "value": role}, "name": {"type": "computedString", "value": name}}
    return {"nodeId": ident, "ignored": False, **named_role, "properties": [], "childIds": children, **named}
