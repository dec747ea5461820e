"""The probes of ``gamebox doctor``: each tests one promise as a hostile command would, and reports what it saw.

A probe returns (state, how, hint). States are "enforced", "partly" and "not"; what could not be tried is "untested".
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sandbox.docker.engine.client import connect, is_podman, translated
from sandbox.docker.environment import DockerEnvironment
from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.limits import MIB, Limits
from sandbox.network.policy import Network

from . import probe_programs as programs

Seen = tuple[str, str, str]
_PYTHON = ["python3", "-"]
_SECONDS = 30.0
_SWAP_HINT = "Boot the kernel with swapaccount=1, or turn swap off."
_CGROUP_HINT = "A rootless engine needs cgroup v2 with delegation; else give the engine the cgroupfs or systemd driver."
_FREEZER_HINT = "The engine must have the freezer: cgroup v1 with it, or cgroup v2."
_KERNEL_HINT = "Linux 5.19 or newer with Landlock switched on (lsm=landlock,...) closes it."
_GONE_SECONDS = 10.0
_PAUSE_SECONDS = 0.5
_NOISE = 1.3  # how far a measured share of a processor may exceed its quota


@dataclass(frozen=True)
class Finding:
    """One promise: whether it is enforced, what the probe saw, and what to do if it is not."""

    promise: str
    state: str
    how: str
    hint: str = ""


def untested(why: str, hint: str) -> list[Finding]:
    """Return the findings where no sandbox starts: the cause once, and every other promise as not tested for it."""
    others = (*INSIDE, *ALONE)
    return [Finding(STARTS, "not", why, hint), *(Finding(name, "untested", "not tested: no sandbox starts") for name in others)]


def _run_json(env: Environment, program: str) -> dict[str, Any]:
    """Run a program and return the JSON that it prints. Raises SandboxError if it prints none."""
    answer = env.run(argv=_PYTHON, stdin=program, session=None, timeout_seconds=_SECONDS).unwrap()
    try:
        printed = json.loads(answer.stdout)
    except ValueError:
        printed = None
    if not isinstance(printed, dict):
        ended = answer.signal or answer.exit_code
        raise SandboxError(
            ErrorCode.tool_error, f"it ended with {ended}: {answer.output.strip()[-200:]}", "Run it again with --debug."
        )
    return printed


def _verdict(holds: bool, how: str, hint: str) -> Seen:
    return ("enforced", how, "") if holds else ("not", how, hint)


def _memory(env: DockerEnvironment) -> Seen:
    answer = env.run(argv=_PYTHON, stdin=programs.HOG, session=None, timeout_seconds=_SECONDS).unwrap()
    alive = env.run("echo alive", session=None)
    holds = answer.signal == "SIGKILL" and alive.ok
    how = f"a program that took more than {env.limits.memory_bytes >> 20} MiB ended with {answer.signal or answer.exit_code}"
    return _verdict(holds, f"{how}; the sandbox {'lives on' if alive.ok else 'died'}", _CGROUP_HINT)


def _attribution(env: DockerEnvironment) -> Seen:
    answer = env.run(argv=_PYTHON, stdin=programs.HOG, session=None, timeout_seconds=_SECONDS)
    noticed = "out_of_memory" in {notice.code for notice in answer.notices}
    holds = noticed and answer.unwrap().oom_killed
    how = (
        "the result of the command that was killed for memory says so" if holds else "a kill for memory goes unnoticed"
    )
    return _verdict(holds, how, "The kernel must count oom_kill in memory.oom_control or memory.events.")


def _swap(env: DockerEnvironment) -> Seen:
    seen = _run_json(env, programs.SWAP)
    how = f"the kernel allows {seen['swap']} bytes of swap beside {seen['memory']} of memory"
    return _verdict(seen["swap"] == 0, how, _SWAP_HINT)


def _cpus(env: DockerEnvironment) -> Seen:
    share = float(_run_json(env, programs.SPIN)["share"])
    how = f"two spinning processes got {share:.2f} of {env.limits.cpus:g} processors"
    return _verdict(share <= env.limits.cpus * _NOISE, how, _CGROUP_HINT)


def _pids(env: DockerEnvironment) -> Seen:
    count = int(_run_json(env, programs.FORK)["count"])
    return _verdict(count < env.limits.pids, f"{count} forks went through of {env.limits.pids} processes", _CGROUP_HINT)


def _disk(env: DockerEnvironment) -> Seen:
    seen = _run_json(env, programs.FILL)
    how = f"{seen['bytes']} bytes went into a workspace of {env.limits.workspace_bytes}, then {seen['error']}"
    return _verdict(seen["bytes"] <= env.limits.workspace_bytes and seen["error"] == "ENOSPC", how, "Report this.")


def _large_disk(runtime: str | None) -> Seen:
    limits = Limits(memory_bytes=128 * MIB, disk_bytes=320 * MIB, pids=64, disk="hard")
    try:
        with DockerEnvironment(limits=limits, runtime=runtime) as env:
            return _disk(env)
    except SandboxError as error:
        if error.code is not ErrorCode.limit_not_enforced:
            raise
        with translated():
            podman = is_podman(connect())
        enforced = 'disk="memory"' if podman else "As root beside the engine, with e2fsprogs,"
        hint = f'{enforced} is enforced; disk="hard" refuses such a sandbox.'
        return "partly", f"soft, measured now and then: {error.message}", hint


def _files(env: DockerEnvironment) -> Seen:
    seen = _run_json(env, programs.FILES)
    how = f"{seen['open']} of {env.limits.open_files} files could be opened, a file could have {seen['size']} bytes"
    return _verdict(
        seen["open"] <= env.limits.open_files and seen["size"] <= env.limits.file_bytes, how, "Report this."
    )


def _all_refused(program: str, what: str, hint: str) -> Callable[[DockerEnvironment], Seen]:
    """Return a probe whose program lists what it should not have been able to do."""

    def probe(env: DockerEnvironment) -> Seen:
        seen = _run_json(env, program)
        got, tried = seen["got"], seen["tried"]
        how = f"{what}: {tried} attempts, {'all refused' if not got else 'succeeded: ' + ', '.join(map(str, got[:5]))}"
        return _verdict(not got, how, hint)

    return probe


def _rules(env: DockerEnvironment) -> Seen:
    """Serve on this host's loopback, which only a rule that names it may open."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=_greet_one, args=(server,), daemon=True).start()
        program = programs.BY_RULE.replace("PORT", str(port))
        seen = [_run_json(env, program)["status"]]
        env.allow(f"127.0.0.1:{port}")
        try:
            opened = _run_json(env, program)
        finally:
            env.network = Network.none()
        seen += [opened["status"], opened["through"], _run_json(env, program)["status"]]
    how = (
        f"one host named by a rule was {'reached' if seen[2] == 'hello' else 'not reached'} through the pipe, and refused before "
        f"and after ({seen[0]}, {seen[3]}); Network.bridge() gives this up: no rule, count or limit holds there, and services of "
        "this host and its networks are in reach"
    )
    return _verdict(seen == ["403", "200", "hello", "403"], how, "Report this.")


def _greet_one(server: socket.socket) -> None:
    server.settimeout(_SECONDS)
    try:
        with server.accept()[0] as connection:
            connection.sendall(b"hello")
    except OSError:  # nobody came, and the probe says so
        pass


def _landlock(env: DockerEnvironment) -> Seen:
    seen = _run_json(env, programs.PROC)
    if not seen["got"]:
        return "enforced", f"writes below /proc are refused (Landlock ABI {seen['landlock']})", ""
    how = f"a command can write {', '.join(seen['got'])}: with full memory it may get the guest killed in its place"
    return "partly", f"{how} (Landlock ABI {seen['landlock'] or 'none'})", _KERNEL_HINT


def _system_calls(env: DockerEnvironment) -> Seen:
    seen = _run_json(env, programs.SYSTEM_CALLS)
    if seen["seccomp"] != 2:
        return "not", "no filter is in force", "Start the engine with seccomp, on a kernel that has it."
    if seen["got"]:
        hint = "The guest's own filter is there for x86_64 and aarch64."
        return "partly", f"the engine's filter alone is in force; open: {', '.join(seen['got'])}", hint
    return "enforced", f"{seen['tried']} calls that broke kernels before were all refused", ""


def _kill_everything(env: DockerEnvironment) -> Seen:
    ended = env.run(argv=_PYTHON, stdin=programs.EVADE, session=None, timeout_seconds=1.0)
    left = _run_json(env, programs.LEFT)["left"]
    holds = not ended.ok and ended.code is ErrorCode.timeout and not left
    return _verdict(holds, f"{left} processes outlived the timeout of a command that daemonised five", "Report this.")


def _pause(env: DockerEnvironment) -> Seen:
    """Pause a command that notes for how long it did not run: the engine's word for a pause is not enough."""
    ident = env.run(argv=["python3", "-c", programs.STAND_STILL], background=True, session=None).unwrap().id
    said = iter(env.follow(ident))
    next(said, None)
    env.pause()
    try:
        time.sleep(_PAUSE_SECONDS)
    finally:
        env.resume()
    env.run("touch /tmp/resumed", session=None).unwrap()
    shown = "".join(chunk.text for chunk in said).strip()
    longest = float(shown) if re.fullmatch(r"[0-9.]+", shown) else 0.0
    how = f"a command stood still for {longest:.2f} s when the sandbox was paused for {_PAUSE_SECONDS:g} s"
    return _verdict(longest >= _PAUSE_SECONDS, how, _FREEZER_HINT)


def _attach(runtime: str | None) -> Seen:
    """Attach to a kept sandbox whose orchestrator, another process, was killed."""
    null = subprocess.DEVNULL
    started = [sys.executable, "-c", programs.KEEPER, runtime or ""]
    with subprocess.Popen(started, stdin=null, stdout=subprocess.PIPE, stderr=null, text=True) as keeper:
        said = keeper.stdout.readline().split() if keeper.stdout is not None else []
        keeper.kill()
    if len(said) != 2:
        return "not", "the orchestrator did not start a kept sandbox", "Report this."
    ident, command = said
    env = DockerEnvironment.attach(ident)
    try:
        session = env.run("echo $LEFT in $PWD").unwrap().output.strip()
        listed = env.processes(command).unwrap().commands
    finally:
        env.remove()
    if session == "behind in /tmp" and any(each.running for each in listed):
        return "enforced", "its orchestrator was killed; this process found its shell and its background command as they were", ""
    return "not", f"its orchestrator was killed; left were the shell {session!r} and {len(listed)} commands", "Report this."


def _orchestrator_death(runtime: str | None) -> Seen:
    started = [sys.executable, "-c", programs.ORCHESTRATOR, runtime or ""]
    null = subprocess.DEVNULL
    with subprocess.Popen(started, stdin=null, stdout=subprocess.PIPE, stderr=null, text=True) as orchestrator:
        line = orchestrator.stdout.readline().strip() if orchestrator.stdout is not None else ""
        orchestrator.send_signal(signal.SIGKILL)
    before = time.monotonic()
    while line and time.monotonic() < before + _GONE_SECONDS:
        with translated():
            if not connect().api.containers(all=True, filters={"id": line}):
                took = time.monotonic() - before
                return "enforced", f"the container was removed {took:.2f} s after its orchestrator was killed", ""
        time.sleep(0.02)
    how = (
        f"the container was still there {_GONE_SECONDS:g} s later"
        if line
        else "the orchestrator did not start a sandbox"
    )
    return (
        "not",
        how,
        "Remove it with `docker rm -f`; the engine must honour auto-remove and the end of standard input.",
    )


INSIDE: dict[str, Callable[[DockerEnvironment], Seen]] = {
    "memory": _memory,
    "out-of-memory attribution": _attribution,
    "swap": _swap,
    "cpus": _cpus,
    "processes": _pids,
    "disk in memory": _disk,
    "open files and file size": _files,
    "no network": _all_refused(programs.NETWORK, "interfaces and addresses", "Report this."),
    "no egress": _all_refused(programs.EGRESS, "names and datagrams", "Report this."),
    "network by rules": _rules,
    "read-only root": _all_refused(programs.ROOT, "places of the system to write to", "Report this."),
    "no new privileges": _all_refused(programs.PRIVILEGES, "ways to privileges", "Report this."),
    "system call filter": _system_calls,
    "no writes below /proc": _landlock,
    "guest out of reach": _all_refused(programs.GUEST, "ways to read, signal or trace the guest", "Report this."),
    "kill everything": _kill_everything,
    "pause": _pause,
}
ALONE: dict[str, Callable[[str | None], Seen]] = {
    "disk": _large_disk,
    "kept and attached": _attach,
    "removed with its orchestrator": _orchestrator_death,
}
STARTS = "a sandbox starts"
PROMISES = (STARTS, *INSIDE, *ALONE)
