"""Kept sandboxes past the engine, each beside one that is reached through it: commands, files both ways, who pays for them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from unittest import mock

from benchmarks import machine
from benchmarks.measuring import MIB, Options, Row, Turns, milliseconds, take_turns
from sandbox import DockerEnvironment, Limits

SIZE = 32 * MIB
COMMANDS = 20


@contextlib.contextmanager
def kept_sandboxes(options: Options) -> Iterator[dict[str, DockerEnvironment]]:
    """Make one sandbox past the engine, and one through it, as if this process were not root."""
    with contextlib.ExitStack() as made:
        found = {}
        for name, uid in (("past the engine", 0), ("through the engine", 1000)):
            with mock.patch("sandbox.docker.container.shortcut.os.geteuid", lambda uid=uid: uid):
                found[name] = DockerEnvironment(options.image, limits=Limits(disk="memory"), keep=True).start()
            made.callback(found[name].remove)
            found[name].upload(os.urandom(SIZE), "file").unwrap()
        yield found


def kept(options: Options) -> Iterator[Row]:
    """Measure calls in pairs, and then the processor time of everybody for them."""
    with kept_sandboxes(options) as sandboxes:
        content = os.urandom(SIZE)
        calls: dict[str, tuple[int, Callable[[DockerEnvironment], object]]] = {
            'run("true", session=None)': (200, lambda env: env.run("true", session=None).unwrap()),
            "read 1 KiB": (200, lambda env: env.read("small").unwrap()),
            "download 32 MiB": (20, lambda env: env.download("file").unwrap()),
            "upload 32 MiB": (20, lambda env: env.upload(content, "other").unwrap()),
        }
        for env in sandboxes.values():
            env.write("small", "x" * 1024).unwrap()
        past, through = sandboxes
        for call, (rounds, work) in calls.items():
            timed = {name: partial(milliseconds, partial(work, env)) for name, env in sandboxes.items()}
            yield in_both_orders(timed, options.rounds(rounds)).row(past, through, name=f"kept: {call}")
            times = COMMANDS if rounds > COMMANDS else 1
            costs = {name: partial(processor_ms, env, work, times) for name, env in sandboxes.items()}
            turns = in_both_orders(costs, options.rounds(20))
            yield turns.row(past, through, name=f"kept: {call}, processor time of all", unit="ms of processor")


def in_both_orders(calls: Mapping[str, Callable[[], float]], rounds: int) -> Turns:
    """Take values in turns, each call as often before the other as behind it: one feels what the last one left to do."""
    (first, one), (second, other) = calls.items()
    turns = take_turns({first: one, second: other, "second again": other, "first again": one}, (rounds + 1) // 2)
    taken = turns.taken
    merged = {first: [*taken[first], *taken["first again"]], second: [*taken[second], *taken["second again"]]}
    return Turns(merged, turns.load)


def processor_ms(env: DockerEnvironment, work: Callable[[DockerEnvironment], object], times: int) -> float:
    """Return the processor time that this process, the engine, its shim and the sandbox take for one call."""
    parties = machine.parties(env)
    guest, others = parties.pop("sandbox")[0], [pid for pids in parties.values() for pid in pids]

    def taken() -> float:
        return machine.processor_ms(others) + machine.container_processor_ms(guest)

    before = taken()
    for _ in range(times):
        work(env)
    return (taken() - before) / times
