"""docs/reference/engines.md: what the last run found on each engine, kept in a JSON file beside this program."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .running import Outcome
from .table import ENGINES, EXCUSED, PARTS

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs/reference/engines.md"
_BEGIN, _END = "<!-- written by make engines -->\n", "<!-- until here -->\n"


def record(outcome: Outcome, *, alone: bool = False) -> None:
    """Put the outcome in the place of the engine's last one, of which the other parts stay if some were run ``alone``."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    others = results.get(outcome.engine.name, {}).get("parts", {}) if alone else {}
    results[outcome.engine.name] = {
        "date": datetime.now(UTC).date().isoformat(),
        "kernel": platform.release(),
        "problem": outcome.problem,
        "engine": outcome.doctor.get("engine", {}),
        "promises": outcome.doctor.get("promises", []),
        "versions": outcome.versions,
        "parts": {**others, **outcome.parts},
        "left": list(outcome.left),
    }
    for each in ("address", "operating_system"):
        results[outcome.engine.name]["engine"].pop(each, None)
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def page() -> str:
    """Return the page with the recorded results in it."""
    results: dict[str, Any] = json.loads(RESULTS.read_text())
    before, _, after = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    shown = [each for each in ENGINES if each.name in results]
    heads = ("engine", "version", "cgroups, storage", "promises that hold", "tests passed", "run on", "name")
    rows = [f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|\n"]
    rows += [_row(each.name, each.subject, results[each.name]) for each in shown]
    rows += ["\n### What does not hold, in the words of `gamebox doctor`\n\n"]
    rows += [line for each in shown for line in _shortcomings(each.name, results[each.name])]
    tried = [each.name for each in shown if results[each.name]["parts"]]
    rows += ["\n### Tests, by what they are about\n\n", f"| | {' | '.join(tried)} |\n|---{'|---' * len(tried)}|\n"]
    rows += [f"| {part} | {' | '.join(_passed(results[name]['parts'].get(part)) for name in tried)} |\n" for part in PARTS]
    reasons = [
        f"- `{name}`, `{test.replace('::', ', ')}`: {reason}\n"
        for name in tried
        for test, reason in EXCUSED.get(name, {}).items()
        if any(test in (failed, failed.partition("::")[0]) for part in results[name]["parts"].values() for failed in part["failed"])
    ]
    if reasons:
        rows += ["\nTests that failed there, and why:\n\n", *reasons]
    return before + _BEGIN + "".join(rows) + _END + after.partition(_END)[2]


def _row(name: str, subject: str, result: Mapping[str, Any]) -> str:
    if result["problem"]:
        return f"| {subject} | | | did not start: {_one_line(result['problem'])[-200:]} | | {result['date']} | `{name}` |\n"
    states = [each["state"] for each in result["promises"]]
    engine, counts = result["engine"], list(result["parts"].values())
    passed, failed = sum(part["passed"] for part in counts), sum(len(part["failed"]) for part in counts)
    starts = states[0] == "enforced"
    columns = [
        subject,
        result["versions"]["Version"],
        f"v{engine['cgroup_version']} ({engine['cgroup_driver'] or 'none'}), {engine['storage_driver']}",
        f"{states.count('enforced')} of {len(states)}" if starts else "sandboxes are refused",
        f"{passed} of {passed + failed}" if counts else "none run",
        result["date"],
        f"`{name}`",
    ]
    return f"| {' | '.join(columns)} |\n"


def _shortcomings(name: str, result: Mapping[str, Any]) -> list[str]:
    return [
        f"- `{name}`: {each['promise']} ({each['state']}): {_one_line(each['how'])}\n"
        for each in result["promises"]
        if each["state"] not in ("enforced", "untested")
    ]


def _passed(part: Mapping[str, Any] | None) -> str:
    return "" if part is None else f"{part['passed']} of {part['passed'] + len(part['failed'])}"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
