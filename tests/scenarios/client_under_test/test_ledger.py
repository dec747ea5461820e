"""A client tool, tested against a real PostgreSQL that only its sandbox reaches."""

import os
import re

import pytest

from sandbox import DockerEnvironment, SideService

IMAGE = os.environ["LEDGER_IMAGE"]
LEDGER = "python3 ledger.py"


def test_money_moves(sandbox: DockerEnvironment) -> None:
    ran = sandbox.run(
        f"{LEDGER} init && {LEDGER} add ann 500 && {LEDGER} add bob 0 && {LEDGER} move ann bob 120"
    ).unwrap()
    assert ran.exit_code == 0, ran.output
    assert sandbox.run(f"{LEDGER} show").unwrap().stdout == "ann 380\nbob 120\n"


def test_a_transfer_that_is_not_covered_moves_nothing(sandbox: DockerEnvironment) -> None:
    sandbox.run(f"{LEDGER} init && {LEDGER} add ann 100 && {LEDGER} add bob 0").unwrap()
    ran = sandbox.run(f"{LEDGER} move ann bob 101").unwrap()
    assert (ran.exit_code, ran.stderr) == (1, "ledger: not covered\n")
    assert sandbox.run(f"{LEDGER} show").unwrap().stdout == "ann 100\nbob 0\n"


def test_many_at_once(sandbox: DockerEnvironment) -> None:
    sandbox.run(f"{LEDGER} init && {LEDGER} add ann 100 && {LEDGER} add bob 0").unwrap()
    sandbox.run(f"for i in 1 2 3 4 5 6; do {LEDGER} move ann bob 10 & done; wait").unwrap()
    assert sandbox.run(f"{LEDGER} show").unwrap().stdout == "ann 40\nbob 60\n"


@pytest.mark.sandbox(services={"db": SideService(image=IMAGE, port=5432)})
def test_a_lost_server_is_reported(sandbox: DockerEnvironment) -> None:
    db = sandbox.services["db"]  # of this test's own
    sandbox.run(f"{LEDGER} init").unwrap()
    db.environment.kill(db.command_id).unwrap()
    ran = sandbox.run(f"{LEDGER} show")
    assert ran.unwrap().exit_code == 3
    # A connection that had sent something when it was closed is reset, by the rules of TCP.
    assert re.search("server closed the connection unexpectedly|Connection reset by peer", ran.unwrap().stderr)
