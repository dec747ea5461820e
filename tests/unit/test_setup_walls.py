"""The one wall import-linter has no contract for: it lists what may be imported, not what may not."""

from __future__ import annotations

import sys

import grimp

from sandbox.docker.images.recipes import travelling_files

GUEST = "sandbox.guest"


def test_the_guest_imports_only_itself_the_standard_library_and_what_travels_with_it() -> None:
    graph = grimp.build_graph("sandbox", include_external_packages=True, cache_dir=None)
    travelling = {path.split("/")[1].removesuffix(".py") for path in travelling_files()}
    guest = {GUEST, *graph.find_descendants(GUEST)}
    assert len(guest) > 1
    imported = set().union(*(graph.find_modules_directly_imported_by(module) for module in guest))
    assert imported - guest - sys.stdlib_module_names - travelling == set()
