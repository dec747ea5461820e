"""Results of opening web pages."""

from __future__ import annotations

from pydantic import model_validator

from .base import Result


class Link(Result):
    text: str
    url: str


class BrowseResult(Result):
    """``text`` is the readable page from ``offset`` on; ``total_chars`` the length of all of it."""

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
            raise ValueError("status is no HTTP status")
        return self

    def to_text(self) -> str:
        """Status line, text, links."""
        head = f"[{self.status} {self.final_url or self.url} {self.content_type}]"
        links = [f"[{i}] {link.text}: {link.url}" for i, link in enumerate(self.links, 1)]
        cut = (
            f"[characters {self.offset}-{self.offset + len(self.text)} of {self.total_chars}]" if self.truncated else ""
        )
        return "\n".join(part for part in (head, self.title, self.text, "\n".join(links), cut) if part)
