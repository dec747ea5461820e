"""Golden prompts as files: which files there are, what each should hold, and what differs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from .page import page, tools_page
from .recording import first_prompts, hub_of_the_product, prompts

PROMPTS = Path(__file__).with_name("prompts")
COMMAND = "make golden"
# One agent for each way of working: native calls, tags, commands in fences, a plan, a summarised memory. The prompts of the
# others are their files; what they add are tools.
AGENTS = ("codeact", "coding", "monologue", "planner", "swe_agent")
TOOLS = "tools.json"


def file_of(agent: str) -> str:
    """Return the name of the file with the prompts of an agent, in its own language."""
    return f"{agent}.{hub_of_the_product().load(agent).language}.txt"


def pages() -> dict[str, str]:
    """Return the text of every file, by name: the prompts of AGENTS, and each tool of any agent once."""
    runs = {agent: prompts(agent, hub_of_the_product().load(agent).language) for agent in AGENTS}
    found = {file_of(agent): page(agent, points) for agent, points in runs.items()}
    sent = {agent: [prompt] for agent, prompt in first_prompts().items()}
    for agent, points in runs.items():
        sent[agent] += points.values()
    return {**found, TOOLS: tools_page(sent)}


def difference(wanted: Mapping[str, str], folder: Path = PROMPTS) -> str:
    """Return how ``wanted`` differs from ``folder``, as a diff; "" if it does not."""
    parts = []
    for name, text in wanted.items():
        path = folder / name
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        if before != text:
            lines = difflib.unified_diff(
                before.split("\n"), text.split("\n"), f"golden/{name}", f"sent/{name}", lineterm=""
            )
            parts.append("\n".join(lines))
    return "\n".join(parts)


def strangers(folder: Path = PROMPTS) -> list[Path]:
    """Return the files that should not be there."""
    known = {*map(file_of, AGENTS), TOOLS}
    return sorted(path for path in folder.iterdir() if path.name not in known) if folder.is_dir() else []
