"""The operation on web pages."""

from __future__ import annotations

from pydantic import Field, model_validator

from sandbox.text.excerpt import SHOWN_CHARS, first_lines, first_part

from . import waiting as _before  # noqa: F401 - whose operations are offered first
from .base import Excerpt, Request
from .result import Result
from .table import operation

_MOST_LINKS_SHARE = 4  # a quarter of the room is for links


class Link(Result):
    text: str
    url: str


class BrowseResult(Excerpt):
    """``text`` is the readable page from ``offset`` on; ``total_chars`` is the length of the whole page."""

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

    @model_validator(mode="after")
    def _sane(self) -> BrowseResult:
        if self.status is not None and not 100 <= self.status <= 999:
            raise ValueError("status is not an HTTP status")
        return self

    def to_text(self, chars: int = SHOWN_CHARS) -> str:
        """Return a status line, the text and the links; then how to read on if the text goes on."""
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


@operation("browse", BrowseResult, repeatable=True)
class Browse(Request):
    """Open a web page and read it as text with its links.

    Reaches the sandbox's own servers (http://127.0.0.1:PORT/) and, if the sandbox has a network, the internet. Redirects
    are followed; a page that is not text is described. Read the rest of a long page with offset.
    """

    url: str = Field(min_length=1, max_length=8192, description="http:// or https:// address.")
    offset: int = Field(0, ge=0, description="Character of the text to start at.")
    max_chars: int = Field(20000, ge=1, le=200000, description="Maximum number of characters of text.")
    raw: bool = Field(False, description="Return the body as it is, instead of readable text.")
    timeout_seconds: float = Field(30, gt=0, le=600, description="Give up after this many seconds.")

    def silence_seconds(self) -> float:
        """See the base class; the guest gives up by itself, a little later on a busy machine."""
        return self.timeout_seconds + 3
