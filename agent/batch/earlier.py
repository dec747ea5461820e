"""Results of earlier batches in the same folder: finished tasks are skipped, and results of other settings are an
error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from sandbox.errors import SandboxError

from .results import Result, State
from .setup import TASK, differences
from .tasks import BatchTask, wrong

MOST_NAMED = 5


def earlier_results(
    out: Path, tasks: Sequence[BatchTask], identities: Mapping[str, Mapping[str, str]], *, redo_changed: bool = False
) -> dict[str, Result]:
    """Return by id the results in ``out`` of tasks that need not run again. ``redo_changed`` leaves out tasks that
    have changed.

    Raises SandboxError ``invalid_configuration`` for a result of another agent, model or the like, or of another
    content of its task: such results do not belong together.
    """
    found = {task.id: result for task in tasks if (result := read_result(out / task.id)) is not None and result.done}
    others = {
        ident: difference for ident, result in found.items() if (difference := differences(result.identity, identities[ident]))
    }
    if others:
        first = next(iter(others))
        raise wrong(
            f"{len(others)} of {len(found)} results in {out} belong to something else, as {first}: {'; '.join(others[first])}.",
            "Name another folder with -o, or give the options that these results were made with.",
        )
    changed = [ident for ident, result in found.items() if result.identity.get(TASK) != identities[ident].get(TASK)]
    if changed and not redo_changed:
        raise _changed(out, changed)
    return {ident: result for ident, result in found.items() if ident not in changed}


def read_result(folder: Path) -> Result | None:
    """Return the result in a task's folder; None if there is no readable one."""
    try:
        data = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        identity = {str(name): str(value) for name, value in dict(data.get("identity", {})).items()}
        return Result(**{**data, "state": State(data["state"]), "identity": identity})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _changed(out: Path, changed: Sequence[str]) -> SandboxError:
    more = f" and {len(changed) - MOST_NAMED} more" if len(changed) > MOST_NAMED else ""
    return wrong(
        f"The tasks {', '.join(changed[:MOST_NAMED])}{more} have changed since their results in {out} were made.",
        "Repeat them with --redo-changed, which replaces their results, or name another folder with -o.",
    )
