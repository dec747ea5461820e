"""How much of a prompt the next one begins with, byte for byte: what providers cache. Printed with ``pytest -s``."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from agent import Budget, Goal, Prompt
from agent.hub import AgentSpec, Hub, Setting, build, catalogue
from sandbox.environment.base import Environment

STEPS = 50
# Name, options, and the least share that follows from the design: a memory that only grows changes nothing that was shown (what is
# new of 50 steps is a fiftieth of the prompts on the way, and the state of the environment comes last); a cut in steps of half of
# what is shown costs a prompt that is mostly new, once in as many turns as fill that half again.
MEMORIES: dict[str, tuple[str, dict[str, Any], float]] = {
    "window below its limit": ("window", {"limit": 200}, 0.9),
    "window, sliding": ("window", {"limit": 20}, 0.0),
    "window in steps": ("window", {"limit": 20, "step": 10}, 0.6),
    "window, tokens": ("window", {"limit_tokens": 3000}, 0.8),
    "recall": ("recall", {}, 0.9),
    "condensing below its threshold": ("condensing", {"threshold_tokens": 100_000}, 0.9),
    "condensing": ("condensing", {"threshold_tokens": 3000}, 0.75),
    "condensing, keep_last": ("condensing", {"threshold_tokens": 3000, "keep_last": 30}, 0.75),
    "condensing over recall over window": (
        "condensing",
        {"threshold_tokens": 3000, "over": {"memory": "recall", "over": {"memory": "window", "limit": 200}}},
        0.75,
    ),
}


class Ticking(Environment):
    """Says something else of itself at each prompt, as sandboxes do of the time that is left."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def describe(self) -> dict[str, str]:
        """See the base class."""
        self.asked += 1
        return {"sandbox": "A folder for you alone.", "left": f"{10_000 - self.asked} s"}


def written(prompt: Prompt) -> bytes:
    """As a provider gets it: tools first, then the messages."""
    return json.dumps([prompt.tools, prompt.messages], ensure_ascii=False).encode()


def stable_share(prompts: list[bytes]) -> float:
    """Of all bytes but those of the first prompt, those that the prompt before began with in the same way."""
    kept = 0
    for before, after in itertools.pairwise(prompts):
        same = next(
            (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
        )
        kept += same
    return kept / sum(map(len, prompts[1:]))


def prompts_of_run(language: str, memory: str, options: dict[str, Any]) -> list[bytes]:
    asked: list[bytes] = []

    def brain(prompt: Any) -> Any:
        if "no longer see" in str(prompt.messages[0]["content"]):
            return "Done: thought about files."
        asked.append(written(prompt))
        if len(asked) > STEPS:
            return {"tool": "finish", "args": {"summary": "done"}}
        return {"tool": "think", "args": {"thought": f"thought {len(asked)} " + "of many words " * 20}}

    spec = AgentSpec(
        name="thinker", description="Thinks.", goals=(Goal("Think about what the user says. " * 20),),
        actions=("think", "finish"), language=language, memory=memory, memory_options=options, stuck=None,
    )  # fmt: skip
    setting = Setting(environment=Ticking(), hub=Hub(), brain=brain, budget=Budget(max_iterations=STEPS + 1))
    run = build(spec, setting).execute("Think fifty times.")
    assert run.ok, run.reason
    return asked


@pytest.mark.exhaustive
@pytest.mark.parametrize("language", sorted(catalogue.LANGUAGES))
@pytest.mark.parametrize("name", MEMORIES)
def test_the_stable_share_of_the_prompt(language: str, name: str) -> None:
    memory, options, least = MEMORIES[name]
    share = stable_share(prompts_of_run(language, memory, options))
    print(f"{language:<17} {name:<36} {share:.3f}")
    assert share >= least


def test_a_window_in_steps_keeps_more_than_one_that_slides() -> None:
    slides = stable_share(prompts_of_run("json", "window", {"limit": 20}))
    steps = stable_share(prompts_of_run("json", "window", {"limit": 20, "step": 10}))
    assert steps > slides + 0.2


def test_the_same_parts_give_the_same_bytes() -> None:
    assert prompts_of_run("json", "window", {}) == prompts_of_run("json", "window", {})


def test_the_measure_itself() -> None:
    assert stable_share([b"abc", b"abcdef", b"abcdef"]) == pytest.approx(9 / 12)
    assert stable_share([b"abc", b"xbc"]) == 0.0
