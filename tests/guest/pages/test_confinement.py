"""What keeps the browser from files: Landlock, laid on its driver and so on all that it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, subprocess, sys
from sandbox.guest.pages.driver.confinement import confine
own, other = sys.argv[1:]
print(confine(own, (sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(sys.modules["sandbox"].__file__)))))
open(own + "/new", "w").write("x")
for use in (lambda: open(other + "/file").read(), lambda: open(other + "/made", "w"), lambda: os.listdir(other),
            lambda: os.unlink(other + "/file"), lambda: open("/etc/new-file", "w")):
    try:
        use()
    except PermissionError:
        print("refused")
print(subprocess.run(["cat", other + "/file"], capture_output=True).returncode, len(open("/etc/passwd").read()) > 0)
"""


def test_only_the_system_and_its_own_folder_are_left(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    (other / "file").write_text("secret")
    done = subprocess.run([sys.executable, "-c", PROGRAM, own, other], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n") == ["True", *["refused"] * 5, "1 True", ""], done.stderr
