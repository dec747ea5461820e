"""What is done on an engine: our images are loaded, ``gamebox doctor`` says what holds, and tests run. Nothing may be left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import docker.errors

from sandbox.docker.images import runtime
from sandbox.docker.images.images import ensure_image
from tests.integration.observing import eventually
from tests.integration.own_engine import TRIED

from .roots import cache, report
from .starting import Started, started
from .table import PARTS, Engine, is_excused

ROOT = Path(__file__).parents[2]
MACHINE_ENGINE = "unix:///var/run/docker.sock"
_IMAGES = ("gamebox/base", runtime.RUNTIME_IMAGE)
_DOCTOR_SECONDS, _TEST_SECONDS = 300, 1500
_TESTS = ROOT / "tests"


@dataclass
class Outcome:
    """What came of an engine. ``problem`` says why it was not tried, "" if it was.

    ``parts`` has for each of PARTS how many tests passed, were skipped and which failed.
    """

    engine: Engine
    problem: str = ""
    doctor: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: Sequence[str] = ()

    def good(self) -> bool:
        """Return whether all is as this engine is known to do it."""
        if self.problem or self.left:
            return False
        promises = {each["promise"]: each for each in self.doctor["promises"]}
        starts = promises["a sandbox starts"]
        if self.engine.refuses:
            return starts["state"] == "not" and self.engine.refuses in starts["how"]
        failed = [name for part in self.parts.values() for name in part["failed"]]
        return starts["state"] == "enforced" and all(is_excused(self.engine.name, name) for name in failed)


def run(engine: Engine, parts: Sequence[str]) -> Outcome:
    """Start an engine, try it, and end it."""
    report(f"{engine.name}: {engine.subject}")
    try:
        with started(engine) as own:
            return _try(own, parts)
    except (RuntimeError, OSError, docker.errors.DockerException, subprocess.SubprocessError) as error:
        return Outcome(engine, problem=str(error).strip())


def _try(own: Started, parts: Sequence[str]) -> Outcome:
    engine = own.engine
    report("  loading our images")
    _load(own.socket)
    # With its default one, so that also this engine's runtime volume is made and checked.
    report("  gamebox doctor")
    runtime_named = [] if engine.runtime is None else ["--runtime", engine.runtime]
    said = subprocess.run(
        [str(Path(sys.executable).with_name("gamebox")), "doctor", "--json", *runtime_named], env=_environment(own), cwd=ROOT,
        text=True, capture_output=True, timeout=_DOCTOR_SECONDS, check=False,
    )  # fmt: skip
    doctor = json.loads(said.stdout) if said.stdout.startswith("{") else {}
    if "promises" not in doctor:
        raise RuntimeError(f"gamebox doctor: {said.stdout.strip()}{said.stderr.strip()}")
    outcome = Outcome(engine, doctor=doctor, versions=_versions(own))
    states = [each["state"] for each in outcome.doctor["promises"]]
    report("    " + ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
    for each in outcome.doctor["promises"]:
        if each["state"] in ("partly", "not"):
            report(f"    {each['promise']}: {each['how']}")
    if states[0] == "enforced":
        for part in parts:
            outcome.parts[part] = _test(own, part)
    outcome.left = _left(own.socket)
    return outcome


def _environment(own: Started) -> Mapping[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "DOCKER", "GAMEBOX"))}
    variables = dict(own.variables)
    before = variables.pop("PATH_BEFORE", "")
    path = f"{before}:{inherited['PATH']}" if before else inherited["PATH"]
    state = {"XDG_STATE_HOME": str(own.base / "state")}
    return {**inherited, **state, **variables, "PATH": path, "GAMEBOX_REQUIRE_ENGINE": "1", TRIED: str(own.base)}


def _load(address: str) -> None:
    """Load our images from a file in the cache, which is written if it is not that of the machine's own engine now."""
    main = docker.DockerClient(base_url=MACHINE_ENGINE)
    try:
        names = [ensure_image(main, name, report=report) for name in _IMAGES]
        tags = ["gamebox/base:latest", runtime.runtime_image(main)]
        saved, mark = cache() / "images.tar", cache() / "images.ids"
        if not saved.is_file() or not mark.is_file() or mark.read_text() != repr(names):
            mark.unlink(missing_ok=True)
            with tempfile.NamedTemporaryFile(dir=cache(), delete=False) as new:
                subprocess.run(["docker", "--host", MACHINE_ENGINE, "save", *tags], stdout=new, check=True)
            Path(new.name).rename(saved)
            mark.write_text(repr(names))
    finally:
        main.close()
    with saved.open("rb") as file:
        command = ["docker", "--host", address, "load", "--quiet"]
        subprocess.run(command, stdin=file, check=True, stdout=subprocess.DEVNULL)


def _versions(own: Started) -> Mapping[str, str]:
    client = docker.DockerClient(base_url=own.socket, version="1.41")
    try:
        said = client.version()
    finally:
        client.close()
    parts = {str(each.get("Name")): str(each.get("Version")) for each in said.get("Components") or []}
    return parts | {"Version": str(said.get("Version")), "ApiVersion": str(said.get("ApiVersion"))}


def _test(own: Started, part: str) -> dict[str, Any]:
    """Run the tests of a part. Returns how many passed and were skipped, and the names of those that failed."""
    report(f"  testing: {part}")
    written = own.base / "report.xml"
    written.unlink(missing_ok=True)
    files = [str(_TESTS / name) for name in PARTS[part]]
    chosen = ["-k", "docker"] if "contract/" in PARTS[part][0] else []
    options = ["-q", "-p", "no:cacheprovider", "--timeout=60", f"--junitxml={written}"]
    command = [sys.executable, "-m", "pytest", *options, *chosen, *files]
    with (own.base / "tests.log").open("ab") as log:
        subprocess.run(
            command, env=_environment(own), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=_TEST_SECONDS,
            check=False,
        )  # fmt: skip
    passed, skipped, failed = 0, 0, []
    for case in ET.parse(written).iter("testcase") if written.exists() else ():
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    kept = cache() / f"{own.engine.name}.log"
    kept.write_bytes((own.base / "tests.log").read_bytes())
    report(f"    {passed} passed, {len(failed)} failed, {skipped} skipped ({kept})")
    return {"passed": passed, "skipped": skipped, "failed": sorted(set(failed))}


def _left(address: str) -> list[str]:
    """Return the containers and volumes that are left on an engine, beside the runtime's volume, after a few seconds.

    Volumes without a name are left out: a test that removes a container past Gamebox leaves them on Podman, without a label.
    """
    client = docker.DockerClient(base_url=address, version="1.41", timeout=30)

    def left() -> list[str]:
        volumes = client.api.volumes().get("Volumes") or []
        containers = [each["Names"][0] for each in client.api.containers(all=True)]
        names = [str(each["Name"]) for each in volumes]
        return containers + [name for name in names if not re.fullmatch(r"gamebox-runtime-.*|[0-9a-f]{64}", name)]

    try:
        eventually(lambda: not left(), 10)
        return left()
    finally:
        client.close()
