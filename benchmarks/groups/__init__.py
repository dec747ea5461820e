"""The groups of rows, by the names that the command line knows. Modules are loaded when a group is measured."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.measuring import Options, Row


@dataclass(frozen=True)
class Group:
    """What a group measures, where that is, and whether it belongs to a run without names."""

    summary: str
    module: str
    default: bool = False

    def measure(self, name: str, options: Options) -> Iterator[Row]:
        """Measure row after row."""
        function: Callable[[Options], Iterator[Row]] = getattr(importlib.import_module(f"benchmarks.{self.module}"), name)
        return function(options)


GROUPS = {
    "commands": Group("run in a workspace of 0, 100 and 1,000 files, beside the bare process", "groups.commands", True),
    "loaded": Group("the same beside busy processes of the host, and beside busy sandboxes", "groups.commands", True),
    "pool": Group("acquire from the warm pool, and the first command", "groups.starts", True),
    "starts": Group("cold create in a fresh process beside docker run; close", "groups.starts", True),
    "files": Group("read and write 1 KiB, 1 MiB and 64 MiB, on disk and in memory", "groups.files", True),
    "output": Group("10 MiB of output beside a bare pipe", "groups.files", True),
    "crowd": Group("8 sandboxes x 50 commands beside as many bare processes", "groups.crowd", True),
    "memory": Group("memory of a sandbox, inside and in the orchestrator", "groups.memory", True),
    "cli": Group("gamebox --help, and gamebox run beside a cold create", "groups.starts", True),
    "live": Group("500 live sandboxes at 200 commands/s for minutes, and the rate that they bear", "groups.crowd"),
    "growth": Group("more sandboxes, files, bytes and load: three minutes, with pictures", "groups.growth"),
    "state": Group("looking at, keeping, restoring and forking the files of a sandbox", "groups.state"),
    "kept": Group("a kept sandbox past the engine beside one reached through it", "groups.kept"),
    "network": Group("through the pipe beside a Docker bridge, and 300 sandboxes with a way out", "network.comparison"),
    "hogs": Group("run beside a sandbox that uses up all it can", "groups.hogs"),
    "disks": Group("start, close and a crowd, on disks beside in memory", "groups.disks"),
    "builds": Group("builds of images in sandboxes beside docker build", "groups.builds"),
    "browser": Group("pages in the browser of a sandbox, beside headless Chromium started by hand in it", "groups.browser"),
    "agent_steps": Group("the host's time for a step of an agent", "groups.agent_steps"),
    "service": Group("commands, files, creations and tenants over HTTP, beside a kept sandbox in process", "service"),
    "service_restart": Group("a killed service with 50 sandboxes until it is ready again", "service"),
    "service_live": Group("200 sandboxes of 20 tenants, one command a second each for minutes", "service"),
    "tracing": Group("the same with OpenTelemetry spans", "groups.agent_steps"),
}
