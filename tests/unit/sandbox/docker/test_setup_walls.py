"""Walls that import-linter has no contract for: what a package may import, and what nothing may load."""

from __future__ import annotations

import subprocess
import sys

import grimp
import pytest

from sandbox.docker.images.recipes import bundled_files

GUEST, SETUP = "sandbox.guest", "sandbox.docker.setup"
EVERYTHING_PUBLIC = """
import sys
import sandbox, agent
for package in (sandbox, agent):
    for name in package.__all__:
        getattr(package, name)
import sandbox.docker.environment, sandbox.docker.doctor.doctor, sandbox.pytest_plugin, sandbox.cli.run
assert "sandbox.docker.images.runtime" in sys.modules
print([name for name in sys.modules if name.startswith("sandbox.docker.setup")])
"""


def test_the_guest_imports_only_itself_the_standard_library_and_what_travels_with_it() -> None:
    graph = grimp.build_graph("sandbox", include_external_packages=True, cache_dir=None)
    travelling = {path.split("/")[1].removesuffix(".py") for path in bundled_files()}
    guest = {GUEST, *graph.find_descendants(GUEST)}
    assert len(guest) > 1
    imported = set().union(*(graph.find_modules_directly_imported_by(module) for module in guest))
    others = {"_sha2", "_sha256"}  # of the standard library since Python 3.12, and until then
    assert imported - guest - sys.stdlib_module_names - others - travelling == set()


@pytest.mark.exhaustive
def test_nothing_of_the_library_reaches_the_installation_of_an_engine() -> None:
    """An import inside a function counts as well: only the command ``gamebox setup`` installs programs."""
    done = subprocess.run([sys.executable, "-c", EVERYTHING_PUBLIC], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    graph = grimp.build_graph("sandbox", cache_dir=None)
    setup = {SETUP, *graph.find_descendants(SETUP)}
    assert set().union(*(graph.find_modules_that_directly_import(module) for module in setup)) <= setup
