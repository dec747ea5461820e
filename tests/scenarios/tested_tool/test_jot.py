"""The tool, tested where it can do no harm: each test has a container of its own."""

import json

import pytest

from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.ready import wait_for_http, wait_for_log

JOT = "python3 jot.py"


def test_a_note_is_kept(sandbox: SandboxedEnvironment) -> None:
    assert sandbox.run(f"{JOT} add 'buy milk'").unwrap().stdout == "note 1\n"
    assert sandbox.run(f"{JOT} list").unwrap().stdout == "1. buy milk\n"


def test_notes_of_many_at_once_are_all_kept(sandbox: SandboxedEnvironment) -> None:
    ran = sandbox.run(f"for i in 1 2 3 4 5; do {JOT} add note-$i & done; wait; {JOT} list --json").unwrap()
    kept = json.loads(ran.stdout.splitlines()[-1])
    assert sorted(note["text"] for note in kept) == [f"note-{i}" for i in range(1, 6)]
    assert [note["number"] for note in kept] == [1, 2, 3, 4, 5]


def test_a_damaged_file_is_reported_and_left_alone(sandbox: SandboxedEnvironment) -> None:
    sandbox.write("notes.jsonl", "{half a no").unwrap()
    ran = sandbox.run(f"{JOT} list").unwrap()
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr.startswith("jot: notes.jsonl is damaged")
    assert sandbox.read("notes.jsonl").unwrap().content == "{half a no"


def test_the_server_shows_the_notes(sandbox: SandboxedEnvironment) -> None:
    sandbox.run(f"{JOT} add hello").unwrap()
    server = sandbox.run(f"{JOT} serve --port 0", background=True).unwrap().id
    port = wait_for_log(sandbox, server, r"listens on 127.0.0.1:(\d+)")[1]
    page = wait_for_http(sandbox, f"http://127.0.0.1:{port}/notes", status=200, command_id=server)
    assert json.loads(page.text) == [{"number": 1, "text": "hello"}]


@pytest.mark.sandbox(env={"JOT_FILE": "/nowhere/notes"}, limits={"memory_bytes": 256 << 20})
def test_a_place_that_cannot_be_written_is_an_error(sandbox: SandboxedEnvironment) -> None:
    ran = sandbox.run(f"{JOT} add x").unwrap()
    assert ran.exit_code == 1
    assert "/nowhere/notes" in ran.stderr


def test_the_help_names_every_command(sandbox_session: SandboxedEnvironment) -> None:
    shown = sandbox_session.run(f"{JOT} --help").unwrap().stdout
    assert all(word in shown for word in ("add", "list", "serve"))
