"""A research agent: finds and quotes passages of local documents, and may only finish with sources it has read.

It shares the loop with the other examples; what differs are goals, actions, environment and language (JSON in text).

    python docs/examples/research_agent.py                      # a scripted brain
    python docs/examples/research_agent.py --model provider/name "When can a boat that draws 3 m enter?"
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent import (
    Action,
    ActionRegistry,
    Agent,
    Budget,
    Environment,
    Goal,
    JsonLanguage,
    LiteLLMModel,
    PrintingHooks,
    ScriptedModel,
    ToolError,
)

DOCUMENTS = Path(__file__).parent / "documents"
TASK = "How large is the tide's range in the harbour when the moon is full, and why?"


class Library(Environment):
    """The documents, and which of them were read: state that belongs to the environment and is shown in every prompt."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.texts = {p.stem: p.read_text() for p in sorted(folder.glob("*.txt"))}
        self.opened: list[str] = []

    def describe(self) -> dict[str, str]:
        return {"documents": ", ".join(self.texts), "read so far": ", ".join(self.opened) or "none"}

    def find(self, words: str) -> list[dict[str, Any]]:
        """Find the lines that have most of some words."""
        wanted = set(re.findall(r"\w+", words.lower()))
        scored = [
            {
                "document": name,
                "line": number,
                "text": line,
                "words_found": len(wanted & set(re.findall(r"\w+", line.lower()))),
            }
            for name, text in self.texts.items()
            for number, line in enumerate(text.splitlines(), 1)
        ]
        hits: list[dict[str, Any]] = [s for s in scored if s["words_found"]]
        return sorted(hits, key=lambda hit: -int(hit["words_found"]))[:5]

    def open(self, document: str) -> str:
        """Read a document."""
        if document not in self.texts:
            raise ToolError(
                f"There is no document {document!r}.", f"There are {', '.join(self.texts)}.", next_tool="search"
            )
        if document not in self.opened:
            self.opened.append(document)
        return self.texts[document]

    def answer(self, text: str, sources: list[str]) -> Mapping[str, Any]:
        """Give the answer and name its sources; ends the work."""
        unread = [s for s in sources if s not in self.opened]
        if unread or not sources:
            what = f"{', '.join(unread)} was not read" if unread else "an answer needs sources"
            raise ToolError(
                f"The answer was not taken: {what}.", "Open what you cite, and cite what you opened.", next_tool="open"
            )
        return {"answer": text, "sources": sources}


def registry_of(library: Library) -> ActionRegistry:
    cited = {"type": "object", "required": ["answer", "sources"]}
    return ActionRegistry(
        [
            Action.of(library.find, name="search"),
            Action.of(library.open, metadata={"idempotent": True}),
            Action.of(library.answer, terminal=True, return_schema=cited),
        ]
    )


GOALS = [
    Goal(1, "question", "Answer the user's question from the documents alone."),
    Goal(2, "sources", "Read every document you cite. Say so if the documents do not hold the answer."),
]

SCRIPT = [
    'The range at full moon. {"tool": "search", "args": {"words": "range full moon harbour"}}',
    '{"tool": "answer", "args": {"text": "6.2 m", "sources": ["harbour"]}}',
    'I have to read first. {"tool": "open", "args": {"document": "tides"}}',
    '{"tool": "open", "args": {"document": "harbour"}}',
    (
        '{"tool": "answer", "args": {"text": "6.2 m: at full moon the Sun pulls in line with the Moon (a spring tide).", '
        '"sources": ["tides", "harbour"]}}'
    ),
]


def make_agent(model: str | None = None) -> Agent:
    library = Library(DOCUMENTS)
    brain = ScriptedModel(SCRIPT) if model is None else LiteLLMModel(model)
    return Agent(
        GOALS, JsonLanguage(), registry_of(library), brain, library, budget=Budget(max_iterations=20, max_seconds=300)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default=TASK)
    parser.add_argument("--model")
    options = parser.parse_args()
    agent = make_agent(options.model)
    agent.hooks.append(PrintingHooks())
    run = agent.execute(options.task)
    print(f"{run.result['answer']} [{', '.join(run.result['sources'])}]" if run.ok else f"not finished: {run.reason}")
    raise SystemExit(0 if run.ok else 1)
