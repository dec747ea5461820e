"""Find out why a command failed from its output and its text: an empty input, a port in use, and what cannot work in a sandbox.

Everything read here was written by commands: it is bounded, and only worth a hint. Lives in the reactor's thread.
"""

from __future__ import annotations

import os
import re

from ..files.roots import roots_of
from ..protocol.faults import Fault
from ..watch import sockets
from ..watch.process_tree import descendants
from ..watch.stalling import ports_of
from ..watch.waiting import MOST_PROCESSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .command import Command
    from .processes import Processes

TAIL_BYTES = 8192
TEXT_CHARS, HOLDER_CHARS = 120, 50
COMMAND_CHARS, PROMPT_BYTES = 1000, 200
# What programs say that got the end of their input where they wanted an answer.
_ENDED = re.compile(
    rb"EOFError|EOF when reading|unexpected end of (?:file|input)|stdin is not a (?:tty|terminal)|[Nn]ot a (?:tty|terminal)\b"
    rb"|the input device is not a TTY|Aborted!\s*\Z|no input provided|Inappropriate ioctl for device"
)
# The end of output that has no line end and asks.
_ASKS = re.compile(rb"(?:\[[yY]/[nN]\]|\([yY](?:es)?/[nN]o?\)|[Pp]assword(?: for [^:\n]*)?|\?)[ \t]*[:>]?[ \t]*\Z")
# A shell script that reads an answer (and not lines, in a loop or from a pipe).
_SCRIPT_BYTES, MOST_SCRIPTS = 64 * 1024, 5
_WORD = re.compile(r"[\w./~+-]+")
_READS = re.compile(rb"(?:^|[;&\s])read(?:[ \t]+-[a-zA-Z]+)*(?:[ \t]+\"([^\"]*)\"|[ \t]+'([^']*)')?")
_READS_LINES = re.compile(rb"\b(?:while|until)\b|[|<#]")
_LINES, _LINE_BYTES = 2000, 300
_IN_USE = re.compile(rb"[Aa]ddress (?:is )?already in use|EADDRINUSE|[Pp]ort \d+ is (?:already )?in use")
_NUMBER = re.compile(rb"(?<![\d.])\d{2,5}(?![\d.])")
MOST_PORTS = 3
# Programs that cannot do their work in a sandbox, where they stand as a command, by what they want.
_PROGRAMS = {
    "services": "systemctl|service|initctl|rc-service",
    "containers": "docker|podman|nerdctl|docker-compose",
    "packages": "apt-get|apt|dpkg|apk|yum|dnf|microdnf|zypper|pacman",
    "mounts": "mount|umount|unshare|chroot|nsenter|modprobe|losetup",
    "ping": "ping|ping6|traceroute|tracepath|mtr",
    "root": "sudo|su|doas|pkexec",
}
_IN_FRONT = (
    r"(?:^|[;&|({\n]|\b(?:then|do|else)\b)\s*"
    r"(?:(?:exec|env|nice|time|timeout\s+\S+|nohup|command|sudo(?:\s+-\S+)*|[A-Za-z_]\w*=\S*)\s+)*"
)
_CANNOT = {kind: re.compile(rf"{_IN_FRONT}({names})(?=\s|;|&|\||$)") for kind, names in _PROGRAMS.items()}
_REFUSED = re.compile(
    rb"not found|[Pp]ermission denied|permitted|ead-only file system|are you root|uperuser|annot connect|ailed to connect"
    rb"|not been booted|nreachable|resol(?:ution|ving)|not (?:known|resolve)|[Mm]ust be root|No such file|new privileges"
)


def clues(processes: Processes, command: Command, args: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the notices that explain why ``command`` failed; [] for one that did not, or was stopped."""
    exit_code, by = command.outcome
    if command.stop_reason is not None or by is not None or not exit_code:
        return []
    tail = command.output.tail()[-TAIL_BYTES:]
    found = [_port_in_use(processes, command, tail), _impossible(processes, tail, args), _input_ended(processes, tail, args)]
    return [notice for notice in found if notice is not None]


def _input_ended(processes: Processes, tail: bytes, args: dict[str, Any]) -> dict[str, Any] | None:
    if args.get("stdin") or args.get("pty") or args.get("stays_open"):
        return None
    asked = _ASKS.search(tail[-PROMPT_BYTES:])
    if asked or _ENDED.search(tail):
        line = tail.rstrip(b"\n").rpartition(b"\n")[2] if asked else b""
        return {"code": "input_ended", "asked": line.decode("utf-8", "replace")[-TEXT_CHARS:].strip()}
    script = _reading_script(processes, args)
    return None if script is None else {"code": "input_ended", **script}


def _reading_script(processes: Processes, args: dict[str, Any]) -> dict[str, Any] | None:
    """A shell script in the text of the command that reads an answer from its input."""
    text = args["command"] if args.get("argv") is None else " ".join(args["argv"])
    names = [word for word in _WORD.findall(text[:COMMAND_CHARS]) if "." in word or "/" in word][:MOST_SCRIPTS]
    roots, workspace = roots_of(processes.place), os.fsdecode(processes.place.workspace)
    with processes.spawner.acting_as_user:
        for name in names:
            path = os.path.join(args.get("cwd") or workspace, name)
            try:
                if roots.is_missing(path):
                    continue
                fd, _ = roots.open_regular(path)
            except Fault:
                continue
            try:
                data = os.read(fd, _SCRIPT_BYTES)
            except OSError:
                continue
            finally:
                os.close(fd)
            is_script = name.endswith((".sh", ".bash")) or re.match(rb"#![^\n]*\b(?:ba|da|z|k)?sh\b", data)
            if is_script and (asked := _asked(data)) is not None:
                return {"script": name[:TEXT_CHARS], "asked": asked}
    return None


def _asked(script: bytes) -> str | None:
    """The prompt of the first ``read`` of a shell script that is for an answer ("" for one without a prompt); None without one."""
    for line in script.split(b"\n", _LINES)[:_LINES]:
        if len(line) <= _LINE_BYTES and (reads := _READS.search(line)) and not _READS_LINES.search(line):
            return (reads[1] or reads[2] or b"").decode("utf-8", "replace")[:TEXT_CHARS].strip()
    return None


def _port_in_use(processes: Processes, command: Command, tail: bytes) -> dict[str, Any] | None:
    if not _IN_USE.search(tail):
        return None
    listening = {port for _, _, port in sockets.tcp_listeners()}
    text = tail + b" " + str(command.about.get("text", "")).encode("utf-8", "replace")
    named = {int(number) for number in _NUMBER.findall(text)} & listening
    held: dict[int, Command] = {}
    with processes.spawner.acting_as_user:
        for other in tuple(processes.commands.values()):
            if other is not command and not other.tree_empty and other.runner is not None:
                for port in ports_of(descendants(other.runner.pid)[:MOST_PROCESSES]):
                    held.setdefault(port, other)
    ports = sorted(named or held)[:MOST_PORTS]
    if not ports:
        return None
    port = next((each for each in ports if each in held), ports[0])
    holder = held.get(port)
    fields = {} if holder is None else {"id": holder.id, "text": _begun(str(holder.about.get("text", "")))}
    return {"code": "port_in_use", "port": port, **fields}


def _begun(text: str) -> str:
    return text if len(text) <= HOLDER_CHARS else text[:HOLDER_CHARS] + "..."


def _impossible(processes: Processes, tail: bytes, args: dict[str, Any]) -> dict[str, Any] | None:
    """What cannot work here for a user without rights, in a container without a service manager or an engine."""
    usual = processes.isolated and processes.place.uid and args.get("user") is None
    if not usual or not _REFUSED.search(tail):
        return None
    text = str(args.get("command") or " ".join(args.get("argv") or ()))[:COMMAND_CHARS]
    for kind, pattern in _CANNOT.items():
        if (kind != "ping" or processes.place.limits.get("network") != "bridge") and (found := pattern.search(text)):
            return {"code": "not_possible", "kind": kind, "program": found[1]}
    return None
