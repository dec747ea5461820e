"""The files of texts: one page for each situation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .situation import Situation
from .stage import Shown

TEXTS = Path(__file__).parent / "texts"
_TOOLS, _ACTION, _TEXT = "==== tools", "==== action", "==== shown"


@dataclass(frozen=True, slots=True)
class Page:
    """What a file holds."""

    tools: str
    action: str
    text: str


def page_of(situation: Situation, shown: Shown) -> str:
    """The page of a situation."""
    parts = (f"{situation.name}: {', '.join(situation.codes)}", _TOOLS, shown.tools, _ACTION, shown.action, _TEXT, shown.text)
    return "\n".join(parts)


def read_page(name: str) -> Page:
    """The page as it was written last. Raises OSError where there is none."""
    text = (TEXTS / f"{name}.txt").read_text(encoding="utf-8")
    _, _, rest = text.partition(f"\n{_TOOLS}\n")
    tools, _, rest = rest.partition(f"\n{_ACTION}\n")
    action, _, shown = rest.partition(f"\n{_TEXT}\n")
    return Page(tools, action, shown)
