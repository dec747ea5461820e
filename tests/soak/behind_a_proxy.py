"""An orchestrator whose way to the engine breaks, in a process of its own: ``python -m tests.soak.behind_a_proxy SEED``.

Prints JSON: the ``case``, the ``name`` of the container that must not be left, and the ``problem``, null where there is none.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from random import Random

from sandbox import DockerEnvironment, Limits
from sandbox.errors import ErrorCode, SandboxError
from sandbox.testing import EngineProxy, Faults

from .subject import MIB, Wrong, check

LIMITS = Limits(memory_bytes=256 * MIB)
Case = Callable[[EngineProxy, DockerEnvironment, Random], None]


def _works(env: DockerEnvironment) -> None:
    check(env.run("echo works").unwrap().output == "works\n", "it does not work")


def _no_start(env: DockerEnvironment, *codes: ErrorCode) -> None:
    try:
        env.start()
    except SandboxError as error:
        check(error.code in codes, error)
    else:
        raise Wrong("it started")


def slow(proxy: EngineProxy, env: DockerEnvironment, rng: Random) -> None:
    proxy.inject(Faults(delay_seconds=rng.choice((0.02, 0.1))))
    env.start()
    _works(env)
    answer = env.run("echo so far; sleep 100", timeout_seconds=0.5)
    check(answer.code is ErrorCode.timeout, answer)  # type: ignore[union-attr]


def creation_refused(proxy: EngineProxy, env: DockerEnvironment, _: Random) -> None:
    proxy.answer("create", 500, "something is wrong with the engine")
    _no_start(env, ErrorCode.engine_error)


def creation_cut(proxy: EngineProxy, env: DockerEnvironment, _: Random) -> None:
    """The engine makes the container, and nobody hears of it."""
    proxy.inject(Faults(cut_after_bytes=0), "create")
    _no_start(env, ErrorCode.engine_unavailable, ErrorCode.engine_timeout, ErrorCode.engine_error)


def start_cut(proxy: EngineProxy, env: DockerEnvironment, _: Random) -> None:
    proxy.inject(Faults(cut_after_bytes=0), "start")
    _no_start(env, ErrorCode.engine_unavailable, ErrorCode.engine_timeout, ErrorCode.engine_error)


def gone_and_back(proxy: EngineProxy, env: DockerEnvironment, _: Random) -> None:
    proxy.refuse()
    _no_start(env, ErrorCode.engine_unavailable)
    proxy.heal()
    with DockerEnvironment(limits=LIMITS) as another:
        _works(another)


def events_cut(proxy: EngineProxy, env: DockerEnvironment, _: Random) -> None:
    env.start()
    proxy.cut("events")
    _works(env)


def pipe_cut(proxy: EngineProxy, env: DockerEnvironment, rng: Random) -> None:
    env.start()
    proxy.inject(Faults(cut_after_bytes=rng.choice((3, 50, 5000))), "attach")
    answer = env.run("seq 20000")
    check(answer.code is ErrorCode.sandbox_unavailable, answer)  # type: ignore[union-attr]


def removal_cut(proxy: EngineProxy, env: DockerEnvironment, _: Random) -> None:
    env.start()
    _works(env)
    for kind in ("kill", "remove", "stop"):
        proxy.inject(Faults(cut_after_bytes=0), kind)


def cut_of_a_kept_one(proxy: EngineProxy, env: DockerEnvironment, rng: Random) -> None:
    """Twice in the middle of a run, which is carried out once."""
    env.start()
    cutters = [threading.Timer(seconds, proxy.cut, ("attach",)) for seconds in (0.1, rng.choice((0.3, 1.0)))]
    for cutter in cutters:
        cutter.start()
    answer = env.run("echo x >> ran; sleep 0.5; seq 20000", keep_output_bytes=1 << 20, timeout_seconds=30)
    for cutter in cutters:
        cutter.join()
    check(answer.unwrap().output.endswith("\n20000\n"), answer)
    check(env.run("cat ran").unwrap().output == "x\n", "carried out twice")


CASES: tuple[Case, ...] = (
    slow, creation_refused, creation_cut, start_cut, gone_and_back, events_cut, pipe_cut, removal_cut, cut_of_a_kept_one,
)  # fmt: skip


def main() -> int:
    """The program; its exit code."""
    rng = Random(sys.argv[1])
    case, problem = rng.choice(CASES), None
    keep = case is cut_of_a_kept_one
    with EngineProxy() as proxy:
        os.environ["DOCKER_HOST"] = proxy.address
        env = DockerEnvironment(limits=LIMITS, keep=keep, keep_seconds=60.0)
        try:
            case(proxy, env, rng)
        except Wrong as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001
            problem = "".join(traceback.format_exception(error)[-4:])
        finally:
            if case is not removal_cut:
                proxy.heal()
            env.remove()
    print(json.dumps({"case": case.__name__, "name": env.backend.name, "problem": problem}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
