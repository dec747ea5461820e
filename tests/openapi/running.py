"""Run schemathesis against a service, and see which routes were carried out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/openapi.json"
# Keys are not made up: two in one request would be refused.
_ALWAYS = (
    "--request-timeout=60",
    "--generation-with-security-parameters=false",
    "--generation-database=none",
    "--suppress-health-check=all",
)


@dataclass(frozen=True)
class Outcome:
    """What came of a run: ``output`` is that of schemathesis, ``statuses`` are the answers by route."""

    succeeded: bool
    output: str
    statuses: Mapping[str, frozenset[int]]

    @property
    def requests(self) -> int:
        """How many different answers there were; the requests are in the output."""
        return sum(len(each) for each in self.statuses.values())

    @property
    def never_carried_out(self) -> list[str]:
        """The routes that never answered 2xx."""
        paths = json.loads(DOCUMENT.read_text(encoding="utf-8"))["paths"]
        routes = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
        return [each for each in routes if not any(200 <= status < 300 for status in self.statuses.get(each, ()))]


def run(url: str, key: str, image: str, folder: Path, options: Sequence[str]) -> Outcome:
    """Run all checks; ``options`` are of ``schemathesis run``."""
    config, log = folder / "schemathesis.toml", folder / "statuses"
    log.touch()
    environment = {
        **os.environ,
        "GAMEBOX_URL": url,
        "GAMEBOX_API_KEY": key,
        "GAMEBOX_TESTED_IMAGE": image,
        "GAMEBOX_TESTED_LOG": str(log),
        "SCHEMATHESIS_HOOKS": "tests.openapi.overrides",
        "PYTHONPATH": str(ROOT),
    }
    written = subprocess.run(
        [sys.executable, "-c", "from tests.openapi.overrides import configuration; print(configuration())"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    config.write_text(f"cache.enabled = false\n{written.stdout}\n[auth.openapi.bearer]\nbearer = {json.dumps(key)}\n")
    program = str(Path(sys.executable).with_name("schemathesis"))
    command = [program, "--config-file", str(config), "run", f"{url}/openapi.json", "--checks", "all", "--no-color"]
    done = subprocess.run(
        [*command, *_ALWAYS, *options],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    statuses: dict[str, set[int]] = {"GET /openapi.json": {200}}  # it was read from there
    for line in log.read_text().splitlines():
        route, status, *_ = json.loads(line)
        statuses.setdefault(route, set()).add(status)
    return Outcome(done.returncode == 0, done.stdout, {route: frozenset(each) for route, each in statuses.items()})
