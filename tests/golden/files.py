"""Golden prompts as files: which there are, what each is to hold, and what is another."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.hub import catalogue

from .page import page, schemas
from .recording import hub_of_the_product, prompts

PROMPTS = Path(__file__).with_name("prompts")
COMMAND = "make golden"
# Every agent is there in its own language; these in others, too: one in all that there are, one in the two it is driven by.
IN_EVERY_LANGUAGE = "coder"
ALSO = {"codeact": ("function_calling",)}


@dataclass(frozen=True, slots=True)
class Case:
    """One agent in one language."""

    agent: str
    language: str

    def __str__(self) -> str:
        return f"{self.agent}.{self.language}"


def cases() -> list[Case]:
    """All there are, in the order of their names: a new agent, or a new language, is among them by itself."""
    hub = hub_of_the_product()
    found = {Case(name, hub.load(name).language) for name in hub.names()}
    found |= {Case(IN_EVERY_LANGUAGE, language) for language in catalogue.LANGUAGES}
    found |= {Case(agent, language) for agent, languages in ALSO.items() for language in languages}
    return sorted(found, key=str)


def pages_of(case: Case) -> dict[str, str]:
    """The files of a case by name: the messages, and the schemas of tools where the language sends some."""
    points = prompts(case.agent, case.language)
    pages = {f"{case}.txt": page(f"{case.agent} in {case.language}", points)}
    return pages | {f"{case}.tools.json": text for text in (schemas(points),) if text}


def difference(pages: Mapping[str, str], folder: Path = PROMPTS) -> str:
    """What is another than in ``folder``, as a diff; "" for nothing."""
    parts = []
    for name, text in pages.items():
        path = folder / name
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        if before != text:
            lines = difflib.unified_diff(before.split("\n"), text.split("\n"), f"golden/{name}", f"sent/{name}", lineterm="")
            parts.append("\n".join(lines))
    return "\n".join(parts)


def strangers(folder: Path = PROMPTS) -> list[Path]:
    """Files that belong to no case."""
    known = {f"{case}{end}" for case in cases() for end in (".txt", ".tools.json")}
    return sorted(path for path in folder.iterdir() if path.name not in known) if folder.is_dir() else []
