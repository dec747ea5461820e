"""A file agent: the tools of the seeds' lesson, plain functions on the host, no sandbox.

python docs/examples/file_agent.py                          # a scripted brain
python docs/examples/file_agent.py --model provider/name "Which files mention tides?"
"""

from __future__ import annotations

import argparse
from pathlib import Path

from agent import (
    ActionRegistry,
    Agent,
    Budget,
    Environment,
    FunctionCallingLanguage,
    Goal,
    LiteLLMModel,
    PrintingHooks,
    ScriptedModel,
    ToolError,
)
from agent.tools import finish_action

FOLDER = Path(__file__).parent / "documents"
TASK = "Which files mention a neap tide?"


def list_files() -> list[str]:
    """List the files of the folder."""
    return sorted(p.name for p in FOLDER.iterdir() if p.is_file())


def read_file(file_name: str) -> str:
    """Read a file of the folder.

    Args:
        file_name: Name of the file.
    """
    if file_name not in list_files():
        raise ToolError(f"There is no file {file_name!r}.", "Call list_files to see the names.", next_tool="list_files")
    return (FOLDER / file_name).read_text()


def search_in_file(file_name: str, search_term: str) -> list[tuple[int, str]]:
    """Find the lines of a file that contain a term, in upper or lower case: pairs of line number and line.

    Args:
        file_name: Name of the file.
        search_term: What to look for.
    """
    lines = read_file(file_name).splitlines()
    return [(number, line) for number, line in enumerate(lines, 1) if search_term.lower() in line.lower()]


REGISTRY = ActionRegistry([list_files, read_file, search_in_file, finish_action()])

GOALS = [
    Goal(
        priority=1,
        name="file_management",
        description="""Answer questions about the files of one folder by:
1. Listing files when needed
2. Reading file contents when needed
3. Searching within files when information is required
4. Finishing with an answer that names the files""",
    )
]

SCRIPT = [
    {"thought": "What is there?", "tool": "list_files", "args": {}},
    {"tool": "search_in_file", "args": {"file_name": "tide.txt", "search_term": "neap"}},
    {
        "thought": "I mistook the name.",
        "tool": "search_in_file",
        "args": {"file_name": "tides.txt", "search_term": "neap"},
    },
    {"tool": "search_in_file", "args": {"file_name": "harbour.txt", "search_term": "neap"}},
    {"tool": "search_in_file", "args": {"file_name": "currents.txt", "search_term": "neap"}},
    {"tool": "finish", "args": {"summary": "harbour.txt and tides.txt mention a neap tide."}},
]


def make_agent(model: str | None = None) -> Agent:
    brain = ScriptedModel(SCRIPT) if model is None else LiteLLMModel(model)
    return Agent(
        GOALS,
        FunctionCallingLanguage(),
        REGISTRY,
        brain,
        Environment(),
        budget=Budget(max_iterations=20, max_seconds=300),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default=TASK)
    parser.add_argument("--model")
    options = parser.parse_args()
    agent = make_agent(options.model)
    agent.hooks.append(PrintingHooks())
    run = agent.execute(options.task)
    print(run.result["summary"] if run.ok else f"not finished: {run.reason}")
    raise SystemExit(0 if run.ok else 1)
