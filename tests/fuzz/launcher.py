"""The launcher's reader of specs under fuzz: every mutated spec is taken or refused as a second reader, in Python, would."""

from __future__ import annotations

import atexit
import functools
import random
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from sandbox.guest.commands.launch.packets import ANNOUNCE, FOLDER_IN_DESCRIPTOR, HEADER, TERMINAL, Spec
from sandbox.guest.users import User
from sandbox.local.launcher import SOURCE

from .conversations import Exchange
from .found import Counts, Found
from .mutations import mutated_bytes

SPECS = 2000  # in a conversation, which is one process
NUMBERS = (0, 1, 2, 8, 9, 255, 256, 1023, 1024, 65536, 65537, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 2, (1 << 32) - 1)
ANSWER = struct.Struct("=iIII")
# Reads (size, spec) from its input, each into memory of just that size; answers whether it was taken, how many arguments and
# variables it has, and how many bytes they have.
HARNESS = """
#define main launcher_main
#include "%s"
#undef main
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    uint32_t size;
    while (fread(&size, sizeof size, 1, stdin) == 1) {
        char *data = malloc(size);
        if (fread(data, 1, size, stdin) != size)
            return 64;
        struct spec spec = {0};
        uint32_t answer[4] = {(uint32_t)read_spec(data, size, &spec)};
        if (answer[0] == 0) {
            answer[3] = (uint32_t)strlen(spec.folder);
            for (char **each = spec.argv; *each != NULL; each++, answer[1]++)
                answer[3] += (uint32_t)strlen(*each);
            for (char **each = spec.envp; *each != NULL; each++, answer[2]++)
                answer[3] += (uint32_t)strlen(*each);
            for (size_t i = 0; i < spec.group_count; i++)
                answer[3] += spec.groups[i] & 1;
        }
        fwrite(answer, sizeof answer, 1, stdout);
        free(data);
    }
    return 0;
}
"""
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")


@functools.cache
def harness() -> Path:
    """The compiled program, which watches what it does to memory if this compiler can do that."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-launcher-"))
    atexit.register(shutil.rmtree, folder)
    source, program = folder / "harness.c", folder / "harness"
    source.write_text(HARNESS % SOURCE, encoding="utf-8")
    for flags in (SANITIZED, ("-O2",)):
        done = subprocess.run(["cc", *flags, "-o", program, source], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return program
    raise RuntimeError(done.stderr)


class LauncherTarget:
    """Mutated specs, SPECS in a conversation."""

    def __init__(self, _: Exchange, __: list[Exchange]) -> None:
        harness()

    def conversation(self, rng: random.Random, counts: Counts) -> None:
        """Specs that the reader takes or refuses. Raises Found where it does what the other one does not."""
        specs = [mutated_spec(rng) for _ in range(SPECS)]
        answers = read_specs(specs)
        counts.conversations += 1
        for spec, answer in zip(specs, answers, strict=True):
            counts.frames += 1
            if answer != (expected := expect(spec)):
                raise Found(f"{answer} and not {expected}", [spec.hex()])
            counts.endings["taken" if answer else "refused"] += 1


def replay(conversation: list[str]) -> None:
    """Read again what was kept. Raises Found."""
    for spec in map(bytes.fromhex, conversation):
        if read_specs([spec]) != [expect(spec)]:
            raise Found("the spec is read differently", [spec.hex()])


def read_specs(specs: list[bytes]) -> list[tuple[int, int, int] | None]:
    """What the launcher reads in each spec, or None where it refuses it. Raises Found where it fails."""
    sent = b"".join(len(spec).to_bytes(4, "little") + spec for spec in specs)
    done = subprocess.run([harness()], input=sent, capture_output=True, check=False, timeout=100)
    answers = list(ANSWER.iter_unpack(done.stdout[: len(done.stdout) // ANSWER.size * ANSWER.size]))
    if done.returncode != 0 or len(answers) != len(specs):
        wrong = specs[len(answers)].hex() if len(answers) < len(specs) else ""
        raise Found(f"exit {done.returncode}: {done.stderr.decode(errors='replace')[:3000]}", [wrong])
    return [(arguments, variables, size) if problem == 0 else None for problem, arguments, variables, size in answers]


def expect(data: bytes) -> tuple[int, int, int] | None:
    """What a spec holds: (arguments, variables, their bytes and odd groups); None for what is no spec."""
    if len(data) < HEADER.size:
        return None
    flags, state_fd, uid, gid, groups, arguments, variables, size = HEADER.unpack_from(data)
    strings = data[HEADER.size + 4 * groups :]
    if groups > 65536 or len(data) < HEADER.size + 4 * groups or size != len(strings) or not strings.endswith(b"\0"):
        return None
    if flags & ~(ANNOUNCE | TERMINAL | FOLDER_IN_DESCRIPTOR) or 0xFFFFFFFF in (uid, gid) or arguments == 0:
        return None
    if state_fd != -1 and (not 9 <= state_fd <= 1023 or flags & FOLDER_IN_DESCRIPTOR):
        return None
    if strings.count(0) != 1 + arguments + variables:
        return None
    odd = sum(number & 1 for number in struct.unpack_from(f"={groups}I", data, HEADER.size))
    return arguments, variables, len(strings) - strings.count(0) + odd


def mutated_spec(rng: random.Random) -> bytes:
    """A spec, mostly with something wrong in it."""
    argv = ["x" * rng.randrange(8) for _ in range(rng.choice((1, 1, 2, 3, 300)))]
    env = {f"N{n}": "v" * rng.randrange(8) for n in range(rng.choice((0, 1, 10, 300)))}
    user = User("u", 5, 6, "/", tuple(range(rng.randrange(20)))) if rng.random() < 0.3 else None
    cwd = None if rng.random() < 0.2 else "/" + "d" * rng.randrange(9)
    fd = rng.choice((None, 9, 199)) if cwd is not None else None
    data = bytearray(Spec(argv, env, cwd, state_fd=fd, user=user, terminal=rng.random() < 0.5).pack(1000, 1000))
    kind = rng.random()
    if kind < 0.4:  # one or two numbers of the header
        for _ in range(rng.choice((1, 1, 2))):
            at = 4 * rng.randrange(HEADER.size // 4)
            old = int.from_bytes(data[at : at + 4], "little")
            new = rng.choice((*NUMBERS, old + 1, old - 1, len(data), len(data) - HEADER.size))
            data[at : at + 4] = (new & 0xFFFFFFFF).to_bytes(4, "little")
    elif kind < 0.8:
        data = bytearray(mutated_bytes(rng, bytes(data)))
        if rng.random() < 0.7 and len(data) >= HEADER.size:  # with the right size, so that what follows is read
            groups = int.from_bytes(data[16:20], "little")
            data[28:32] = ((len(data) - HEADER.size - 4 * groups) & 0xFFFFFFFF).to_bytes(4, "little")
    elif kind < 0.9:
        del data[rng.randrange(len(data)) :]
    return bytes(data)
