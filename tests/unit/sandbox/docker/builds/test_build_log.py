"""The log of a build: lines of printable text, bounded."""

from __future__ import annotations

from sandbox.docker.builds.log import BuildLog, LogEntry
from sandbox.docker.builds.step_hints import hint_for_step
from sandbox.readers import hint_for


def test_lines_are_whole_and_printable() -> None:
    entries: list[LogEntry] = []
    log = BuildLog(entries.append, 1000)
    log.begin("1")
    log.output("stdout", "one\ntw")
    log.output("stderr", "\x1b[31mred\x1b[0m\n")
    log.output("stdout", "o\n10%\r50%\rdone\n\x07\u202eback")
    log.flush()
    assert [entry.text for entry in entries][:4] == ["one", "red", "two", "done"]
    assert "\u202e" not in entries[4].text
    assert {entry.step for entry in entries} == {"1"}
    assert list(log.tail)[:2] == ["one", "red"]


def test_the_tail_is_that_of_the_step() -> None:
    log = BuildLog(lambda _: None, 1000)
    log.output("stdout", "".join(f"{number}\n" for number in range(50)))
    assert list(log.tail) == [str(number) for number in range(30, 50)]
    log.begin("2")
    assert not log.tail


def test_a_log_and_its_lines_have_an_end() -> None:
    entries: list[LogEntry] = []
    log = BuildLog(entries.append, 10_000)
    log.output("stdout", "x" * 9000)
    assert [len(entry.text) for entry in entries] == [4096, 4096]
    for number in range(200):
        log.output("stdout", f"\r{number}" * 1000)  # a progress bar is one line
    assert len(entries) == 2
    log.output("stdout", "\n" + "line\n" * 10_000)
    log.say("it failed", "error")
    assert sum(len(entry.text) for entry in entries) < 10_200
    assert [entry.level for entry in entries[-2:]] == ["warn", "error"]


def test_a_step_that_failed_gets_a_hint_by_what_it_printed_or_by_its_status() -> None:
    assert "apt-get update" in hint_for_step(100, ["Reading package lists...", "E: Unable to locate package nosuch"])
    assert "CA bundle" in hint_for_step(60, ["curl: (60) SSL certificate problem: unable to get local issuer certificate"])
    assert "not found" in hint_for_step(127, ["sh: nosuch: not found"])
    assert "cache" in hint_for_step(1, ["one error"])
    assert "could not be reached" in hint_for_step(22, ["curl: (22) The requested URL returned error: 403"], refused=True)
    assert "printed nothing" in hint_for_step(1, [])
    assert "--ca-bundle" in hint_for("cli", hint_for_step(60, ["certificate verify failed"]))
