"""What uses up a sandbox under soak; it must stay usable."""

from __future__ import annotations

from sandbox.errors import ErrorCode

from .subject import Subject, check


def memory_hog(s: Subject) -> None:
    s.counts.injected("out of memory")
    answer = s.env.run("exec python3 -c 'x = bytearray(900 << 20)'", session=None, timeout_seconds=30).unwrap()
    check(answer.oom_killed, answer)
    # the kernel may have taken sleepers too: they are victims before the guest is
    s.sleeping = [ident for ident in s.sleeping if s.env.logs(ident).unwrap().running]


def fork_storm(s: Subject) -> None:
    s.counts.injected("fork storm")
    answer = s.env.run("f() { f | f & }; f; wait; sleep 100", session=None, timeout_seconds=0.5)
    check(not answer.ok and answer.code in (ErrorCode.timeout, ErrorCode.too_many_processes), answer)
    s.heard(answer)
    s.census()


def disk_filler(s: Subject) -> None:
    s.counts.injected("disk full")
    answer = s.env.run("head -c 2G /dev/zero > /tmp/full; rm -f /tmp/full", session=None, timeout_seconds=60).unwrap()
    check("No space left" in answer.stderr, answer)
