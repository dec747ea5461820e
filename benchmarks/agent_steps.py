"""Host time of one step of an agent, without a sandbox and without a model: the loop alone, recorded, and with a text language.

Prints milliseconds per step, the median of several runs, as JSON. To compare two versions, take turns with a checkout of the other
one: ``--against PATH`` runs this file there, too, and prints both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent import (
    Action,
    ActionRegistry,
    Agent,
    Budget,
    Environment,
    FunctionCallingLanguage,
    Goal,
    JsonLanguage,
    ScriptedModel,
)
from agent.tools import finish_action

STEPS = (20, 200)
CALL = {"tool": "look", "args": {"path": "a.py"}}


def agent_of(language: Any, steps: int, replies: list[Any], standing: bool = False) -> Agent:
    """An agent of so many steps, with its standing layers (budget line, stuck notices) or none."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    look = Action("look", lambda path: {"text": f"contents of {path}"}, "Look at a file.", schema)
    has_layers = not standing and hasattr(Agent, "standing_layers")
    options = {"layers": ()} if has_layers else {}  # the same work in every version
    return Agent(
        [Goal("g")],
        language,
        ActionRegistry([look, finish_action()]),
        ScriptedModel(replies),
        Environment(),
        budget=Budget(max_iterations=steps),
        **options,
    )


def plain(steps: int) -> float:
    """Seconds of a run with native calls."""
    return timed(agent_of(FunctionCallingLanguage(), steps, [CALL] * steps).execute)


def standing(steps: int) -> float:
    """Seconds of a run with native calls, each another one, and the standing layers; versions before them have none."""
    calls = [{"tool": "look", "args": {"path": f"{number}.py"}} for number in range(steps)]
    return timed(agent_of(FunctionCallingLanguage(), steps, calls, standing=True).execute)


def text(steps: int) -> float:
    """Seconds of a run with a text language."""
    return timed(agent_of(JsonLanguage(), steps, [json.dumps(CALL)] * steps).execute)


def recorded(steps: int) -> float:
    """Seconds of a recorded run."""
    try:
        from agent.record.resume import execute_recorded
        from agent.record.store import EventLog
    except ImportError:  # a version from before the folders
        from agent.resuming import execute_recorded  # type: ignore[import-not-found, no-redef]
        from agent.store import EventLog  # type: ignore[import-not-found, no-redef]

    with tempfile.TemporaryDirectory() as folder, EventLog(Path(folder, "runs.db")) as log:
        agent = agent_of(FunctionCallingLanguage(), steps, [CALL] * steps)
        return timed(lambda task: execute_recorded(agent, task, log))


def timed(run: Callable[[str], Any]) -> float:
    """Seconds of processor time that the run took."""
    started = time.process_time()
    run("task")
    return time.process_time() - started


def measured(rounds: int) -> dict[str, float]:
    """Milliseconds per step by what is measured."""
    found = {}
    for name, run in {"plain": plain, "standing": standing, "text": text, "recorded": recorded}.items():
        run(STEPS[0])
        for steps in STEPS:
            seconds = statistics.median(run(steps) for _ in range(rounds))
            found[f"{name} {steps}"] = round(seconds / steps * 1000, 3)
    return found


def main() -> None:
    """Measure, here and where ``--against`` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="checkout of another version")
    options = parser.parse_args()
    result: Any = {"here": measured(options.rounds)}
    if options.against is not None:
        command = [sys.executable, str(Path(__file__).resolve()), "--rounds", str(options.rounds)]
        done = subprocess.run(command, env={"PYTHONPATH": str(options.against)}, capture_output=True, text=True, check=True)
        result["against"] = json.loads(done.stdout)["here"]
        result["ratio"] = {name: round(result["here"][name] / result["against"][name], 2) for name in result["here"]}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
