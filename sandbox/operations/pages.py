"""Requests for web pages."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from sandbox import results

from .base import Request


class Browse(Request):
    """Open a web page and read it as text with its links.

    Reaches the sandbox's own servers (http://127.0.0.1:PORT/) and, where the sandbox has a network, the world. Redirects
    are followed; a page that is not text is described. Long pages are read on with offset.
    """

    operation: ClassVar[str] = "browse"
    result: ClassVar[type[results.Result]] = results.BrowseResult
    url: str = Field(min_length=1, max_length=8192, description="http:// or https:// address.")
    offset: int = Field(0, ge=0, description="Character of the text to start at.")
    max_chars: int = Field(20000, ge=1, le=200000, description="How many characters of text at most.")
    raw: bool = Field(False, description="The body as it is, not made readable.")
    timeout_seconds: float = Field(30, gt=0, le=600, description="Give up after this many seconds.")
