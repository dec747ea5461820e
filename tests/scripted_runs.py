"""How tests of the command begin a run that follows a script, without a container."""

from __future__ import annotations

from pathlib import Path


def coding(repo: Path, steps: str, task: str = "t") -> list[str]:
    """The arguments of ``gamebox`` for the agent coding at work on ``repo`` by the script ``steps``."""
    return ["agent", task, "--agent", "coding", "--repo", str(repo), "--script", steps, "--local"]
