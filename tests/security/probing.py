"""Running a probe, as hostile code would run, in a sandbox."""

from __future__ import annotations

from sandbox import DockerEnvironment


def probe(env: DockerEnvironment, source: str) -> str:
    """What Python ``source`` prints in a sandbox, on both streams; a probe that dies says so there."""
    answer = env.run("python3 -", stdin=source, timeout_seconds=60, session=None).unwrap()
    ended = "" if answer.exit_code == 0 else f"[exit {answer.exit_code}, signal {answer.signal}]"
    return answer.output + ended
