"""The package of benchmarks: options, goals, tables, comparisons, and a quick run of a group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import compare, pictures, report
from benchmarks.groups import GROUPS, Group
from benchmarks.groups.memory import call_everything
from benchmarks.measuring import Goal, Options, Row, summary, take_turns
from benchmarks.timeline import Trace
from sandbox import LocalEnvironment

ROOT = Path(__file__).resolve().parents[3]


def row_of(name: str, p50: float, beside: float | None = None, *goals: Goal, unit: str = "ms") -> dict[str, Any]:
    return Row(name, {"p50": p50}, unit, "bare", {} if beside is None else {"p50": beside}, goals, load=(0.1, 0.2)).to_dict("g")


def run_of(*rows: dict[str, Any]) -> dict[str, Any]:
    facts = {
        "processor": "P", "cpus": 2, "memory_gib": 4, "kernel": "6", "engine": "E", "python": "3", "commit": "c",
        "taken": "2026-01-01T00:00:00+0000", "load": 0.0, "quick": False,
    }  # fmt: skip
    return {"facts": facts, "rows": list(rows)}


def test_help_lists_every_group_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command.main(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert not [name for name, group in GROUPS.items() if group.summary not in shown or name not in shown]
    assert "python -m benchmarks.compare" in shown


def test_an_unknown_group_is_refused_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command.main(["commands", "speed"])
    assert end.value.code == 2
    assert "no such group: speed; there are commands, loaded" in capsys.readouterr().err


def test_every_group_has_its_function() -> None:
    for name, group in GROUPS.items():
        assert isinstance(group.measure(name, Options(quick=True)), Iterator)  # nothing is measured yet


def test_a_run_is_kept_after_each_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "rows.json"
    seen: list[int] = []

    def measure(self: Group, name: str, options: Options) -> Iterator[Row]:
        assert options.quick
        for number in range(2):
            yield Row(f"row {number}", {"p50": 2.0}, baseline="bare", beside={"p50": 1.0}, goals=(Goal("ratio", 3.0),))
            seen.append(len(json.loads(kept.read_text())["rows"]))

    monkeypatch.setattr(Group, "measure", measure)
    assert command.main(["commands", "--quick", "--json", str(kept), "--out", str(tmp_path / "out")]) == 0
    assert seen == [1, 2]
    run = json.loads(kept.read_text())
    assert [(row["group"], row["ratio"], row["goals"]) for row in run["rows"]] == [
        ("commands", 2.0, [{"goal": "ratio ≤ 3", "met": True}])
    ] * 2
    assert run == json.loads((tmp_path / "out/commands.json").read_text())
    assert capsys.readouterr().out == (tmp_path / "out/commands.md").read_text() == report.markdown(run)


@pytest.mark.engine
def test_a_quick_run_of_a_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["output", "--quick", "--json", str(tmp_path / "output.json")]) == 0
    (row,) = json.loads((tmp_path / "output.json").read_text())["rows"]
    assert row["figures"]["p50"] > 0 < row["beside"]["p50"]
    assert [goal["goal"] for goal in row["goals"]] == ["p50 ≤ 60", "ratio ≤ 2"]
    assert "10 MiB of output, kept whole" in capsys.readouterr().out


def test_memory_is_measured_after_a_call_of_every_operation() -> None:
    with LocalEnvironment() as env:
        call_everything(env)
        assert env.run("true").unwrap().id == "c3"


def test_goals() -> None:
    values = {"p50": 2.0, "ratio": 3.0}
    assert Goal("p50", 2.0).is_met(values)
    assert not Goal("p50", 1.9).is_met(values)
    assert Goal("p50", 2.0, at_least=True).is_met(values)
    assert Goal("p99", 9.0).is_met(values) is None
    either = Goal("p50", 1.0, otherwise=Goal("ratio", 3.0))
    assert either.is_met(values)
    assert str(either) == "p50 ≤ 1 or ratio ≤ 3"


def test_percentiles_need_enough_values() -> None:
    assert summary([3.0, 1.0, 2.0]) == {"p50": 2.0, "min": 1.0, "rounds": 3}
    assert summary(range(100)) == {"p50": 49.5, "p95": 95, "p99": 99, "min": 0, "rounds": 100}


def test_calls_take_turns_and_the_first_ones_do_not_count() -> None:
    order: list[str] = []

    def call(name: str) -> float:
        order.append(name)
        return float(len(order))

    turns = take_turns({"a": lambda: call("a"), "b": lambda: call("b")}, 2, warm_up=1, pause_seconds=0)
    assert order == ["a", "b"] * 3
    assert turns.taken == {"a": [3.0, 5.0], "b": [4.0, 6.0]}
    assert turns.row("a", "b", Goal("ratio", 1.0)).to_dict("g")["ratio"] == 0.8


def test_a_row_that_was_not_measured_neither_meets_nor_misses() -> None:
    row = Row("pool", note="not there", goals=(Goal("p50", 5.0),)).to_dict("pool")
    shown = report.markdown(run_of(row, row_of("x", 9, 1, Goal("ratio", 2))))
    assert "| pool (not there) |" in shown
    assert "0 rows meet their goals, 1 miss one." in shown


def test_compare_marks_what_got_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = run_of(row_of("a", 10, 10, Goal("ratio", 1.5)), row_of("rate", 0.5, 1, unit="1/s"), row_of("gone", 1))
    new = run_of(row_of("a", 30, 15, Goal("ratio", 1.5)), row_of("rate", 1, 1, unit="1/s"), row_of("new", 2))
    files = [tmp_path / "old.json", tmp_path / "new.json"]
    for file, run in zip(files, (old, new), strict=True):
        file.write_text(json.dumps(run))
    assert compare.main([str(file) for file in files]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[-4:] == [
        "| g: a | 1.00 | 2.00 | 2.00 | worse | met → missed |",
        "| g: rate | 0.50 | 1.00 | 2.00 | better |  |",
        "| g: gone | 1.00 | – | – |  |  |",
        "| g: new | – | 2.00 | – |  |  |",
    ]
    assert compare.main([str(files[0])] * 2) == 0


def test_pages_show_the_last_full_run() -> None:
    assert report.main(["--check"]) == 0, "run python -m benchmarks.report, and commit what it writes"


def test_a_part_of_a_page_is_replaced_and_the_rest_is_not() -> None:
    page = "a\n<!-- speed: begin, written by python -m benchmarks.report -->\nold\n<!-- speed: end -->\nb\n"
    assert report.with_part(page, "speed", "new\n").splitlines()[1:5] == [page.splitlines()[1], "", "new", ""]
    with pytest.raises(ValueError, match="no part 'speed'"):
        report.with_part("a page", "speed", "new")


def test_the_way_of_a_call_is_followed_from_its_return_to_its_beginning() -> None:
    """The caller (1) wakes a runner (2), which waits for a processor, forks a child (3), and is woken by its end."""
    head = "  x 1/{0} [000]     1.{1:09}: sched:{2}"
    switch = "sched_switch: prev_comm=x prev_pid={} prev_prio=120 prev_state={} ==> next_comm=y next_pid={} next_prio=120"
    wake = "sched_waking: comm=y pid={} prio=120 target_cpu=000"
    lines = [
        head.format(0, 100, switch.format(0, "S", 1)),
        head.format(1, 200, wake.format(2)),
        head.format(1, 300, switch.format(1, "S", 2)),
        head.format(2, 350, "sched_process_fork: comm=y pid=2 child_comm=y child_pid=3"),
        head.format(2, 360, "sched_wakeup_new: comm=y pid=3 prio=120 target_cpu=000"),
        head.format(2, 400, switch.format(2, "S", 3)),
        head.format(3, 410, "sched_process_exec: filename=/usr/bin/bash pid=3 old_pid=3"),
        head.format(3, 500, wake.format(2)),
        head.format(3, 520, switch.format(3, "Z", 2)),
        head.format(2, 600, wake.format(1)),
        head.format(2, 640, switch.format(2, "R+", 1)),
        head.format(1, 700, switch.format(1, "S", 0)),
    ]
    trace = Trace(iter(lines), {1: "caller", 2: "runner"})
    second = 10**9
    way = trace.way(1, second + 150, second + 690)
    assert [(p.began - second, p.ended - second, p.label, p.waits) for p in way] == [
        (150, 200, "caller", False), (200, 300, "runner", True), (300, 360, "runner", False),
        (360, 400, "command: bash", True), (400, 500, "command: bash", False), (500, 520, "runner", True),
        (520, 600, "runner", False), (600, 640, "caller", True), (640, 690, "caller", False),
    ]  # fmt: skip


def test_pictures_are_svg() -> None:
    import xml.etree.ElementTree as ET

    lines = pictures.draw_lines("a < b", "x", "y", {"one": [(0, 1.0), (2, 20.0)], "two": [(8, 0.5)]})
    bars = pictures.draw_timeline("t", [("a", 0, 5, "way"), ("b", 5, 9, "wait")], [(5, "a", "b")], 10)
    for text in (lines, bars):
        assert ET.fromstring(text).tag.endswith("svg")
