"""The tables of system calls against the kernel's headers (Debian: linux-libc-dev, which gcc brings)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sandbox.guest import kernel
from sandbox.guest.system_calls import ARCH, MACHINES, OPENAT2, numbers

GUEST = Path(kernel.__file__).parent
# aarch64 has the table of all machines that came late, with these parts of it.
HEADERS = {
    "x86_64": "#include <asm/unistd_64.h>",
    "aarch64": "#define __BITS_PER_LONG 64\n#define __ARCH_WANT_MEMFD_SECRET\n#define __ARCH_WANT_RENAMEAT\n"
    "#include <asm-generic/unistd.h>",
}
AUDIT = "#include <linux/audit.h>\n#include <stdio.h>\nAUDIT_ARCH_X86_64 AUDIT_ARCH_AARCH64\n"
# Without this header there is no table of x86_64 on this machine, and its own is tested all the same.
X86_HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here to read the headers with")


def preprocess(text: str, *options: str) -> str:
    argv = ["gcc", "-E", *options, "-"]
    return subprocess.run(argv, input=text, capture_output=True, text=True, check=True).stdout


def header_numbers(machine: str) -> dict[str, int]:
    rows = re.findall(r"^#define __NR(?:3264)?_(\w+) (\w+)$", preprocess(HEADERS[machine], "-dM"), re.MULTILINE)
    return {name: int(value) for name, value in rows if value.isdigit()}


@pytest.mark.parametrize(
    "machine",
    [pytest.param("x86_64", marks=pytest.mark.skipif(not X86_HEADER.exists(), reason="no headers of x86_64 here")), "aarch64"],
)
def test_every_number_is_that_of_the_header(machine: str) -> None:
    header, known = header_numbers(machine), numbers(machine)
    assert len(known) > 45
    newer = {name for name in known if name not in header}
    assert newer <= {"mount_setattr", "memfd_secret"}, "calls of kernels that are younger than these headers"
    assert {name: header[name] for name in known if name in header} == {n: v for n, v in known.items() if n in header}


def test_a_call_that_a_machine_does_not_have_is_not_in_its_header() -> None:
    missing = set(numbers("x86_64")) - set(numbers("aarch64"))
    assert missing
    assert missing.isdisjoint(header_numbers("aarch64"))


def test_the_names_of_machines_are_those_of_the_kernel() -> None:
    text = preprocess(AUDIT).splitlines()[-1]
    values = [sum(int(word, 0) for word in found.split("|")) for found in re.findall(r"\(([^()]*)\)", text)]
    assert values == [ARCH[name] for name in MACHINES]


def test_numbers_in_c_and_in_both_tables_agree() -> None:
    source = (GUEST / "commands" / "launch" / "launcher.c").read_text()
    named = {
        "CREATE_RULESET": "landlock_create_ruleset", "ADD_RULE": "landlock_add_rule", "RESTRICT_SELF": "landlock_restrict_self",
        "CLOSE_RANGE": "close_range",
    }  # fmt: skip
    written = {name: int(number) for name, number in re.findall(r"\b([A-Z_]+) = (\d+)", source) if name in named}
    assert written.keys() == named.keys()
    for machine in MACHINES if X86_HEADER.exists() else ("aarch64",):
        header = header_numbers(machine)
        assert {name: header[call] for name, call in named.items()} == written
        assert header["openat2"] == OPENAT2


def test_an_unknown_machine_has_no_numbers_and_no_filter() -> None:
    assert numbers("sparc64") == {}
    assert kernel.filter_program("sparc64") is None
