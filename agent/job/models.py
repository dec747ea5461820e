"""The brain that the options of a run name: a model with its options and fallbacks, or a script."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.core.budget import Budget
from agent.hub import AgentSpec
from agent.model.brain import Brain
from sandbox.cli.errors import bad_input
from sandbox.frozen import dataclass

# The log keeps the options of a run, and so must not get a key.
_SECRET = re.compile(r"api_?key|secret|password|credential|authorization|headers|(?:^|_)token$|_key$", re.IGNORECASE)
# What a call has of its own.
_RESERVED = frozenset(
    {
        "model",
        "messages",
        "tools",
        "stream",
        "stream_options",
        "timeout",
        "timeout_seconds",
        "n",
        "max_attempts",
        "max_wait_seconds",
        "fallbacks",
    }
)
# A model with a fallback is not asked as often as one that is alone.
ATTEMPTS_WITH_FALLBACK = 3


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """What a command line says of the brain: ``options`` are KEY=VALUE for the model and its fallbacks."""

    model: str | None = None
    script: Path | None = None
    options: Sequence[str] = ()
    fallback: Sequence[str] = ()


def brain_for(spec: AgentSpec, chosen: ModelChoice, budget: Budget, replies: int = 0) -> Brain | None:
    """Return the brain that the options name; None for an agent that asks no model. Raises SandboxError."""
    if spec.needs_model:
        return make_brain(chosen, budget, replies)
    named = {
        "--model": chosen.model,
        "--script": chosen.script,
        "--model-option": chosen.options,
        "--fallback": chosen.fallback,
    }
    option = next((name for name, value in named.items() if value), None)
    if option is not None:
        raise bad_input(
            f"{option} has no effect with the agent {spec.name}, which uses no model.", f"Leave {option} out."
        )
    return None


def brain_of(model: str | None, script: Path | None, budget: Budget, replies: int = 0) -> Brain:
    """Return the brain of a model without options, or of a script. Raises SandboxError."""
    return make_brain(ModelChoice(model, script), budget, replies)


def make_brain(chosen: ModelChoice, budget: Budget, replies: int = 0) -> Brain:
    """Return the brain, checked as far as possible without a call; a script continues after its first ``replies``.

    Raises SandboxError.
    """
    if (chosen.model is None) == (chosen.script is None):
        raise bad_input(
            "Give either --model or --script." if chosen.model else "No model was named.",
            "Use --model provider/name, for example --model anthropic/claude-sonnet-4-5, or --script FILE.json. A model for all "
            "runs can be named in the variable GAMEBOX_MODEL or the file gamebox/config.toml in $XDG_CONFIG_HOME (~/.config).",
        )
    options = parse_model_options(chosen.options)
    if chosen.script is not None:
        if chosen.options or chosen.fallback:
            option = "--model-option" if chosen.options else "--fallback"
            raise bad_input(f"{option} has no effect with --script, which asks no model.", f"Leave {option} out.")
        from agent.model.scripted import ScriptedModel

        scripted = ScriptedModel.from_file(chosen.script)
        return ScriptedModel(scripted.steps[replies:])
    return _model(chosen, options, budget)


def parse_model_options(texts: Sequence[str]) -> dict[str, Any]:
    """Return options of a model from KEY=VALUE. A value that is JSON is what it says; any other is text.

    Raises SandboxError for an option that is malformed, given twice, set by the run itself, or a secret.
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w{0,63}", name):
            raise bad_input(f"--model-option {text[:80]!r} is not KEY=VALUE.", "Write, for example, temperature=0.")
        if name in options:
            raise bad_input(f"--model-option names {name} twice.", "Give it once.")
        if _SECRET.search(name):
            raise bad_input(
                f"--model-option {name}: the log keeps the options of a run, so a secret must not be one.",
                "Set it in the environment variable that the provider reads.",
            )
        if name in _RESERVED:
            raise bad_input(f"--model-option {name} is set by the run itself.", f"Leave {name} out.")
        options[name] = _value(value)
    return options


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _model(chosen: ModelChoice, options: dict[str, Any], budget: Budget) -> Brain:
    from agent.model.fallback import FallbackModel
    from agent.model.litellm_model import LiteLLMModel

    names = [chosen.model or "", *chosen.fallback]
    attempts: dict[str, Any] = {"max_attempts": ATTEMPTS_WITH_FALLBACK} if chosen.fallback else {}
    models = [LiteLLMModel(name, **attempts, **options) for name in names]
    for model in models:
        model.check()
        if budget.max_cost_usd is not None and not model.is_priced():
            raise bad_input(
                f"--max-cost cannot be enforced: the price of {model.model} is not known.",
                "Use --max-tokens instead of --max-cost.",
            )
    return FallbackModel(models) if chosen.fallback else models[0]
