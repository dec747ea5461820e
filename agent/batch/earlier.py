"""Results that are there already: what is done is skipped, and results of something else are never mixed in."""

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
    """The results in ``out`` of these tasks that need not be tried again, by id. With ``redo_changed`` those of tasks that have
    changed are left out.

    Raises SandboxError ``invalid_configuration`` where a result is of another agent, model or the like, or of another content of
    its task: together they would be results of nothing.
    """
    found = {task.id: result for task in tasks if (result := read_result(out / task.id)) is not None and result.done}
    others = {ident: told for ident, result in found.items() if (told := differences(result.identity, identities[ident]))}
    if others:
        first = next(iter(others))
        raise wrong(
            f"{len(others)} of {len(found)} results in {out} are of something else, {first} for one: {'; '.join(others[first])}.",
            "Name another folder with -o, or give the options that these results were made with.",
        )
    changed = [ident for ident, result in found.items() if result.identity.get(TASK) != identities[ident].get(TASK)]
    if changed and not redo_changed:
        raise _changed(out, changed)
    return {ident: result for ident, result in found.items() if ident not in changed}


def read_result(folder: Path) -> Result | None:
    """The result in a task's folder; None where there is none that can be read."""
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
        "Do these again with --redo-changed, which replaces their results, or name another folder with -o.",
    )
