"""What a sandbox says of itself, and pages of its own servers."""

from __future__ import annotations

from sandbox.errors import ErrorCode
from sandbox.operations import ProcessesResult
from tests.integration.observing import eventually

from .subject import MIB, Subject, check
from .waits import PATIENCE_SECONDS, SERVER


def processes(s: Subject) -> None:
    listed = eventually(lambda: _all_sleep(s.env.processes().unwrap()), 3.0)  # the last may be about to become one
    check(listed is not None, f"others than sleepers: {s.env.processes().unwrap().to_text()}")
    running = sorted(c.id for c in listed.commands if c.running)
    check(running == sorted(s.sleeping), f"{running} run, not {sorted(s.sleeping)}")


def _all_sleep(listed: ProcessesResult) -> ProcessesResult | None:
    """The list where those that run are ``sleep`` and nothing else, and those that ended left nothing."""
    right = all([p.command for p in c.processes] == (["sleep 1000"] if c.running else []) for c in listed.commands)
    return listed if right else None


def usage(s: Subject) -> None:
    # A command whose last line was waited for may still be on its way out.
    eventually(lambda: set(s.env.usage().unwrap().running) == set(s.sleeping), 3.0)
    used = s.env.usage().unwrap()
    check(set(used.running) == set(s.sleeping), f"{used.running} run, not {s.sleeping}")
    check((used.memory_limit_bytes, used.process_limit) == (384 * MIB, 192), used)
    check(0 < (used.memory_used_bytes or 0) <= 384 * MIB and 0 < (used.processes or 0) <= 192, used)
    check(any(p.path == "/workspace" and 0 <= p.free_bytes <= p.size_bytes for p in used.places), used.places)


def browsed(s: Subject) -> None:
    word = f"w{s.rng.randrange(10**9)}"
    page = f"<html><title>{word}</title><body>about <b>{word}</b> <a href='/next'>on</a></body></html>"
    s.env.write("/tmp/site/index.html", page).unwrap()
    server = s.env.run(f"cd /tmp/site; {SERVER}", background=True).unwrap().id
    line = s.env.wait_for(id=server, log=r"port (\d+)", timeout_seconds=PATIENCE_SECONDS).unwrap()
    url = f"http://127.0.0.1:{line.groups[0]}/"
    seen = s.env.browse(url).unwrap()
    check((seen.status, seen.title) == (200, word) and f"about **{word}**" in seen.text, seen)
    check([link.url for link in seen.links] == [f"{url}next"], seen.links)
    s.env.kill(server).unwrap()
    gone = s.env.browse(url)
    check(gone.code is ErrorCode.connection_failed, gone)  # type: ignore[union-attr]
