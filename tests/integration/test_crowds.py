"""Many sandboxes and many callers at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from sandbox import DockerEnvironment, Limits

pytestmark = [pytest.mark.engine, pytest.mark.alone]


def test_eight_sandboxes_with_thirty_commands_each() -> None:
    """Every command is answered with its own output, by its own sandbox, and its session keeps its own state."""

    def life(number: int) -> list[str]:
        with DockerEnvironment(limits=Limits(memory_bytes=128 << 20), env={"NUMBER": str(number)}) as env:
            env.run("export COUNT=0").unwrap()
            said = [env.run("COUNT=$((COUNT + 1)); echo $NUMBER.$COUNT").unwrap().output for _ in range(30)]
            with ThreadPoolExecutor(6) as crowd:
                beside = list(crowd.map(lambda n: env.run(f"echo {n}", session=None).unwrap().output, range(12)))
            assert beside == [f"{n}\n" for n in range(12)]
            return said

    with ThreadPoolExecutor(8) as lives:
        answers = list(lives.map(life, range(8)))
    assert answers == [[f"{number}.{count}\n" for count in range(1, 31)] for number in range(8)]
