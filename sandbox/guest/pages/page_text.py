"""Extracting text and links from the body of a page."""

from __future__ import annotations

import re
import threading
from typing import Any
from urllib.parse import urljoin, urlsplit

from .response import Response

LINKS = 200
LINK_CHARS, URL_CHARS, TITLE_CHARS = 200, 2048, 500
PDF_MEMORY_BYTES = 512 << 20
PARSED_CHARS = 2 << 20  # of a longer page, only the beginning is parsed
NOT_READ = ("script", "style", "noscript", "template", "svg", "head", "iframe", "object", "canvas")

Links = list[dict[str, str]]


def decode(response: Response) -> str:
    """Return the body as text. The encoding is that of its byte order mark, the header, the page's own <meta>, or else UTF-8."""
    body = response.body
    marks = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
    charset = next((name for mark, name in marks if body.startswith(mark)), response.charset)
    if charset is None:
        meta = re.search(rb"<meta[^>]{0,200}charset=[\"']?\s*([A-Za-z0-9_.:-]{1,40})", body[:4096], re.IGNORECASE)
        charset = meta[1].decode() if meta else "utf-8"
    try:
        return body.decode(charset, "replace")
    except (LookupError, UnicodeError):  # an unknown encoding
        return body.decode("utf-8", "replace")


def describe(response: Response) -> str:
    """Return a line that stands for a body that is not text."""
    size = f"more than {response.size_bytes}" if response.truncated else str(response.size_bytes)
    return (
        f"[{response.content_type or 'binary data'}, {size} bytes: not text; fetch it with a command to work with it]"
    )


def extract_pdf(body: bytes, program: str) -> str:
    """Return the text of a PDF as ``pdftotext`` lays it out, "" if it cannot read it. Its time ends with this program's."""
    import resource
    import subprocess

    def bound() -> None:  # a few bytes can become gigabytes here, too
        resource.setrlimit(resource.RLIMIT_AS, (PDF_MEMORY_BYTES, PDF_MEMORY_BYTES))

    try:
        with subprocess.Popen(
            [program, "-layout", "-nopgbrk", "-enc", "UTF-8", "-", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=bound,
        ) as process:
            feeder = threading.Thread(target=_feed, args=(process.stdin, body), daemon=True)
            feeder.start()
            text = process.stdout.read(PARSED_CHARS) if process.stdout is not None else b""
            process.kill()
    except OSError:
        return ""
    return text.decode("utf-8", "replace").strip()


def _feed(stream: Any, body: bytes) -> None:
    try:
        stream.write(body)
        stream.close()
    except OSError:  # it has read enough
        pass


def load_parser() -> tuple[Any, Any]:
    """Return the parser of HTML and what makes Markdown of it. They take long to import: only when a page is HTML."""
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    return BeautifulSoup, MarkdownConverter


def extract(html: str, url: str) -> tuple[str, str, Links]:
    """Return the title, the text as Markdown, and the links of a page."""
    BeautifulSoup, MarkdownConverter = load_parser()  # noqa: N806  classes
    soup = BeautifulSoup(html[:PARSED_CHARS], "html.parser")
    title = _line(soup.title.get_text(), TITLE_CHARS) if soup.title else ""
    base = soup.find("base", href=True)
    links = _links(soup, urljoin(url, str(base["href"])) if base else url)
    for tag in soup(NOT_READ):
        tag.decompose()
    try:
        text: str = MarkdownConverter(
            heading_style="ATX",
            strip=["img"],
            escape_misc=False,
            escape_underscores=False,  # a model searches for names in files as they are, without backslashes
            escape_asterisks=False,
            autolinks=False,
        ).convert_soup(soup)
    except RecursionError:  # nested thousands of levels deep
        text = soup.get_text("\n")
    text = re.sub(r"[ \t]+\n", "\n", text.replace("\r\n", "\n"))
    return title, re.sub(r"\n{3,}", "\n\n", text).strip(), links


def _links(soup: Any, base: str) -> Links:
    links: dict[str, str] = {}
    for anchor in soup.find_all("a", href=True):
        try:
            url = urljoin(base, str(anchor["href"]).strip())
            web = urlsplit(url).scheme in ("http", "https")
        except ValueError:
            continue
        if web and len(url) <= URL_CHARS and not links.get(url):
            links[url] = _line(anchor.get_text(" "), LINK_CHARS)
        if len(links) >= LINKS:
            break
    return [{"text": text, "url": url} for url, text in links.items()]


def _line(text: str, most: int) -> str:
    return " ".join(text.split())[:most]
