"""Faults of the pipe and of the way to the engine, by the product's own FaultyStream and EngineProxy."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

from sandbox.docker.engine.client import connect
from sandbox.testing import Faults
from tests.integration.observing import eventually

from .faults import Fault, back, ended
from .subject import Subject, check

NOTHING = Faults()


def pipe_slow(s: Subject) -> bool:
    """All that is said comes late and by and by; it is all there, and right."""
    if s.faulty is None:
        return False
    s.faulty.inbound.change(Faults(delay_seconds=0.03, bytes_per_second=500_000))
    s.faulty.outbound.change(Faults(delay_seconds=0.03, bytes_per_second=500_000))
    try:
        data = s.rng.randbytes(60_000)
        s.env.upload(data, name := s.new_name()).unwrap()
        s.files[name] = data
        check(s.env.download(name).unwrap().content == data, f"{name} came back otherwise")
        answer = s.env.run("seq 5000", session=None).unwrap()
        check(answer.output == "".join(f"{n}\n" for n in range(1, 5001)), answer.output_bytes)
    finally:
        s.faulty.inbound.change(NOTHING)
        s.faulty.outbound.change(NOTHING)
    back(s)
    return False


def pipe_stalled_shortly(s: Subject) -> bool:
    """Nothing comes for a while, within the deadline: nobody notices."""
    if (faulty := s.faulty) is None:
        return False
    way = s.rng.choice((faulty.inbound, faulty.outbound))
    way.change(Faults(stalled=True))
    timer = threading.Timer(0.4, lambda: way.change(NOTHING))
    timer.start()
    back(s)
    timer.join()
    return False


def pipe_cut_in_a_frame(s: Subject) -> bool:
    """In the middle of an answer; the sandbox is gone for good."""
    if s.faulty is None:
        return False
    s.faulty.inbound.change(Faults(cut_after_bytes=s.rng.choice((0, 3, 50, 5000))))
    s.env.run("seq 20000", session=None, keep_output_bytes=1 << 20)
    return ended(s, "pipe", "connection")


def pipe_cut_and_reconnected(s: Subject) -> bool:
    """Of a kept sandbox in the middle of a run, which was carried out once, and all of whose output is there."""
    name = s.new_name()
    cutter = threading.Timer(s.rng.choice((0.0, 0.05, 0.2)), lambda: _cut(s))
    cutter.start()
    source = f"mkdir -p $(dirname {name}); echo x >> {name}; sleep 0.3; seq 20000"
    answer = s.env.run(source, session=None, keep_output_bytes=1 << 20, timeout_seconds=20)
    cutter.join()
    s.files[name] = b"x\n"
    check(answer.unwrap().output == "".join(f"{n}\n" for n in range(1, 20001)), answer)
    back(s)
    s.uncut()
    check(s.env.read(name).unwrap().content == "x\n", f"{name} was written to again")
    return False


def _cut(s: Subject) -> None:
    if s.faulty is not None:
        s.faulty.inbound.change(Faults(cut_after_bytes=s.rng.choice((0, 3, 50, 5000))))
    else:
        assert s.env.backend.stream is not None
        s.env.backend.stream.close()


def engine_faulty(s: Subject) -> bool:
    """Another orchestrator behind a proxy, which does the worst; nothing is left of it, and this sandbox does not suffer."""
    program = [sys.executable, "-m", "tests.soak.behind_a_proxy", str(s.rng.randrange(10**9))]
    done = subprocess.run(program, capture_output=True, text=True, timeout=180, check=False)
    check(done.returncode == 0, f"{program[-1]}: {done.stdout} {done.stderr[-1500:]}")
    told = json.loads(done.stdout)
    s.counts.injected(f"engine {told['case'].replace('_', ' ')}")
    check(told["problem"] is None, f"engine {told['case']}: {told['problem']}")

    def gone() -> bool:
        return not any(f"/{told['name']}" in (c["Names"] or []) for c in connect().api.containers(all=True))

    if not eventually(gone, 10.0):
        s.counts.add("orphans", note=f"engine {told['case']}: the container {told['name']} is left")
    back(s)
    return False


ANYWHERE: dict[Fault, int] = {pipe_slow: 2, pipe_stalled_shortly: 2, engine_faulty: 3}
OF_KEPT: dict[Fault, int] = {pipe_cut_and_reconnected: 6}
OF_OTHERS: dict[Fault, int] = {pipe_cut_in_a_frame: 2}
