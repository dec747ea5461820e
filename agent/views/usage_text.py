"""What a run used, and how it ended, in one line."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from agent.core.budget import Usage
from agent.core.run import AgentRun


def count_files(some: Collection[object]) -> str:
    """Return how many files: "1 file", "2 files"."""
    return f"{len(some)} file{'' if len(some) == 1 else 's'}"


def summary_line(run: AgentRun) -> str:
    """Return how the run ended and what it used."""
    steps = f"{run.iterations} step{'' if run.iterations == 1 else 's'}"
    used = f"{run.seconds:.1f} s, no model was called" if not run.usage.calls else spent(run.usage, run.seconds)
    return f"{run.status.value}: {run.reason} {steps}, {used}"


def spent(usage: Usage, seconds: float) -> str:
    """Return the time, and if a model was called, the calls, tokens and cost."""
    if not usage.calls:
        return f"{seconds:.1f} s"
    failed = f" ({usage.failed_calls} failed)" if usage.failed_calls else ""
    calls = f"{usage.calls} model call{'' if usage.calls == 1 else 's'}{failed}"
    cached = f" ({usage.cached_tokens} from the cache)" if usage.cached_tokens else ""
    tokens = f"{usage.input_tokens}{cached} + {usage.output_tokens} tokens"
    return f"{seconds:.1f} s, {calls}, {tokens}, {usage.cost_text}"


def cost(usage: Usage | Mapping[str, Any]) -> str:
    """Return what the calls cost; "unknown" if one had no price."""
    known = usage if isinstance(usage, Usage) else Usage(**usage)
    return "unknown" if known.unpriced_calls else f"${known.cost_usd:.4f}"
