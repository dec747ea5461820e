"""Hunks: what git and patch make of them, and that nobody can make them take for ever."""

from __future__ import annotations

import difflib
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.patches import lines
from sandbox.patches.git import EXECUTABLE, REGULAR, SYMLINK, Version, file_patch
from sandbox.patches.lines import hunks

TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "longer line\r\n"]), max_size=40)


@given(TEXTS, TEXTS)
def test_hunks_are_those_of_difflib(before: list[str], after: list[str]) -> None:
    assert list(hunks(before, after)) == list(difflib.unified_diff(before, after))[2:]


@given(TEXTS, TEXTS)
@settings(max_examples=50)
def test_one_hunk_for_all_is_right_as_well(before: list[str], after: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lines, "MOST_WORK", -1)
        made = list(hunks(before, after))[1:]
    assert [line[1:] for line in made if line[0] in " -"] == before[slice(*span(made, before, "-"))]
    assert [line[1:] for line in made if line[0] in " +"] == after[slice(*span(made, after, "+"))]


def span(made: list[str], whole: list[str], sign: str) -> tuple[int, int]:
    """Where in ``whole`` the lines of a hunk are."""
    own = [line[1:] for line in made if line[0] in " " + sign]
    for start in range(len(whole) + 1):
        if whole[start : start + len(own)] == own:
            return start, start + len(own)
    raise AssertionError(f"{own} is not in {whole}")


@pytest.mark.exhaustive
def test_a_text_made_to_take_for_ever_is_one_hunk_that_git_applies(tmp_path: Path) -> None:
    before = "same\n" + "".join(f"{i % 150}\n" for i in range(19_000))
    after = "same\n" + "".join(f"{(i * 7919) % 150}\n" for i in range(19_000))
    patch = file_patch("a", Version(REGULAR, before.encode()), Version(REGULAR, after.encode()))
    (tmp_path / "a").write_text(before)
    subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=tmp_path, check=True)
    assert (tmp_path / "a").read_text() == after
    assert patch.count("\n@@ ") == 1


def test_what_did_not_change_is_no_patch() -> None:
    same = Version(REGULAR, b"a")
    assert file_patch("a", same, same) == ""
    assert file_patch("a", Version(REGULAR, 1 << 40, "d"), Version(EXECUTABLE, 1 << 40, "d")).endswith(
        "new mode 100755\n"
    )
    assert "too large" in file_patch("a", Version(REGULAR, 1 << 40), Version(EXECUTABLE, 1 << 40))


def test_another_type_goes_and_comes() -> None:
    patch = file_patch("a b", Version(REGULAR, b"x\n"), Version(SYMLINK, b"x\n"))
    assert "deleted file mode 100644" in patch
    assert "new file mode 120000" in patch
    assert "--- a/a b\t\n" in patch


def test_many_texts_together_have_one_budget() -> None:
    before, after = [f"{n}\n" for n in range(3000)], [f"{n if n % 20 else 'x'}\n" for n in range(3000)]
    budget = lines.Budget(2_000_000)
    made = [sum(line.startswith("@@") for line in hunks(before, after, budget)) for _ in range(20)]
    assert made[0] > 100
    assert made[-1] == 1
    assert made == sorted(made, reverse=True)


@pytest.mark.exhaustive
def test_a_few_lines_that_are_everywhere_count_as_what_they_cost() -> None:
    """Their cost is not to be hidden in the average of all lines."""
    heavy = [f"h{n % 13}\n" for n in range(2500)]
    mixed = [line for n, one in enumerate(heavy) for line in (one, f"x{n}\n")] + [f"a{n}\n" for n in range(14_900)]
    other = [line for n, one in enumerate(heavy[::-1]) for line in (one, f"y{n}\n")] + [f"b{n}\n" for n in range(14_900)]
    began = time.process_time()
    list(hunks(mixed, other))
    assert time.process_time() - began < 30
