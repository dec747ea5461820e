"""Where this host's own apt installs from."""

from __future__ import annotations

from pathlib import Path


def host_sources(codename: str, etc: Path = Path("/etc/apt")) -> dict[str, str]:
    """Return the host's own package sources for that release by file suffix: ".list" (one line each), ".sources" (deb822).

    Third-party sources are left out: their suites have other names, and their keys may not be readable here.
    """
    lists = [etc / "sources.list", *sorted(etc.glob("sources.list.d/*.list"))]
    texts = [path.read_text() for path in lists if path.is_file()]
    lines = [line for text in texts for line in text.splitlines() if _line_suite(line, codename)]
    stanzas = [
        stanza
        for path in sorted(etc.glob("sources.list.d/*.sources"))
        for stanza in path.read_text().replace("\r\n", "\n").split("\n\n")
        if _stanza_suite(stanza, codename)
    ]
    return {
        ".list": "".join(f"{line}\n" for line in lines),
        ".sources": "".join(f"{stanza.strip()}\n\n" for stanza in stanzas),
    }


def _line_suite(line: str, codename: str) -> bool:
    if not line.startswith("deb "):
        return False
    words = line.split("]", 1)[-1].split() if "[" in line else line.split()[1:]
    return len(words) > 1 and words[1].split("-")[0].split("/")[0] == codename


def _stanza_suite(stanza: str, codename: str) -> bool:
    lines = [line for line in stanza.splitlines() if ":" in line and not line.startswith(("#", " ", "\t"))]
    fields = dict(line.split(":", 1) for line in lines)
    if "deb" not in fields.get("Types", "").split() or fields.get("Enabled", "yes").strip().lower() == "no":
        return False
    return any(suite.split("-")[0].split("/")[0] == codename for suite in fields.get("Suites", "").split())
