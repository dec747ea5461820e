"""The Python kernel that an agent has in a sandbox without Jupyter: what a cell may do, and what it is told."""

from __future__ import annotations

import json
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import ActionRegistry
from agent.core.loop.calls import carry_out
from agent.hub import Hub, Setting
from agent.tools.ipython import IPythonKit
from agent.tools.ipython.channel import Line, _answer
from sandbox import LocalEnvironment


class Kernel:
    """The kit as an agent has it."""

    def __init__(self, environment: Any) -> None:
        self.kit = IPythonKit(Setting(environment=environment, hub=Hub()))
        self.environment, self.registry = environment, ActionRegistry(self.kit.actions())

    def __call__(self, code: str, **options: Any) -> dict[str, Any]:
        return self.do("ipython", code=code, **options)

    def do(self, tool: str, **args: Any) -> dict[str, Any]:
        action = self.registry.get_action(tool)
        assert action is not None
        ok, why = self.registry.validate_args(action, args)
        assert ok, why
        return carry_out(self.environment, action, args)

    def output(self, code: str, **options: Any) -> str:
        answer = self(code, **options)
        assert answer["tool_executed"], answer
        return str(answer["result"]["output"]).rstrip("\n")

    def shown(self, answer: dict[str, Any]) -> str:
        action = self.registry.get_action("ipython")
        assert action is not None
        return action.show(answer)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEnvironment]:
    with LocalEnvironment(tmp_path_factory.mktemp("workspace")) as environment:
        yield environment


@pytest.fixture(scope="module")
def shared(local: LocalEnvironment) -> Kernel:
    return Kernel(local)


@pytest.fixture
def kernel(shared: Kernel) -> Kernel:
    """A kernel that works; tests may leave it dead."""
    if not shared("1").get("tool_executed"):
        assert shared("1")["tool_executed"]
    return shared


def test_variables_stay_and_the_last_value_is_shown(kernel: Kernel) -> None:
    assert kernel.output("import math\nx = 20\ndef double(n):\n    return 2 * n") == ""
    assert kernel.output("double(x) + 2") == "42"
    assert kernel.output("print('é', _)\nx") == "é 42\n20"
    assert kernel.output("'a' if x > 3 else 'b'\n") == "'a'"
    assert "cells run since it started" in kernel.kit.describe()["ipython"]
    assert (
        kernel.output(
            "from dataclasses import dataclass\nimport pickle\n@dataclass\nclass A:\n    n: int\npickle.loads(pickle.dumps(A(3)))"
        )
        == "A(n=3)"
    )


def test_an_error_was_carried_out_and_shows_the_cells_own_lines(kernel: Kernel) -> None:
    answer = kernel("def f():\n    raise ValueError('boo')\nf()")
    assert answer["tool_executed"]
    assert answer["result"]["ok"] is False
    assert answer["result"]["output"].splitlines()[-1] == "ValueError: boo"
    assert "    raise ValueError('boo')" in answer["result"]["output"]
    assert "worker" not in answer["result"]["output"]
    assert kernel.shown(answer).endswith("[the cell raised an error]")
    for code in (
        "x = (",
        "import sys; sys.exit(3)",
        "raise KeyboardInterrupt",
        "input()",
        "class E(Exception):\n  def __str__(s): 1/0\nraise E",
    ):
        assert kernel(code)["result"]["ok"] is False, code
    assert kernel.output("1 + 1") == "2"


def test_a_timeout_interrupts_the_cell_and_keeps_the_variables(kernel: Kernel) -> None:
    kernel.output("kept = 7")
    for seconds in (0.5, 4, 16):  # until the machine let it print
        answer = kernel("print('so far')\nwhile True: pass", timeout_seconds=seconds)
        if answer["result"]["output"]:
            break
    assert (answer["code"], answer["effects"]) == ("timeout", "partial")
    assert answer["result"]["output"].startswith("so far\n")
    assert kernel.output("kept") == "7"


@pytest.mark.exhaustive
def test_a_cell_that_will_not_end_is_killed_and_that_is_told(kernel: Kernel) -> None:
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('deaf', flush=True)\nwhile True: pass"
    for seconds in (0.5, 4, 16):  # until the machine let it print
        answer = kernel(code, timeout_seconds=seconds)
        if answer["code"] == "kernel_died":
            break
    assert answer["code"] == "kernel_died"
    assert "did not end in time" in answer["error"]
    assert answer["result"]["output"] == "deaf\n"
    assert "NameError" in kernel("kept")["result"]["output"]


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("import os; print(1, flush=True); os._exit(3)", "exited with 3"),
        ("import os; os.closerange(3, 40)", "The Python kernel"),
    ],
)  # fmt: skip
def test_the_death_of_the_kernel_is_told_and_the_next_cell_has_a_fresh_one(kernel: Kernel, code: str, how: str) -> None:
    kernel.output("mine = 1")
    answer = kernel(code)
    assert answer["code"] == "kernel_died", answer
    assert how in answer["error"]
    assert answer["effects"] == "unknown"
    assert kernel.output("'mine' in globals()") == "False"


def test_a_driver_that_is_killed_from_outside_is_noticed(kernel: Kernel, local: LocalEnvironment) -> None:
    state = kernel.kit.snapshot()
    local.kill(state["command"]).unwrap()
    assert kernel("1")["code"] == "kernel_died"
    assert kernel.output("1") == "1"


def test_output_is_bounded_whatever_a_cell_prints(kernel: Kernel) -> None:
    answer = kernel("print('a' * 10 + 'x' * 5_000_000 + 'b' * 10)")
    result = answer["result"]
    assert result["output"].startswith("a" * 10)
    assert result["output"].rstrip().endswith("b" * 10)
    assert result["total_chars"] == 5_000_021
    assert len(json.dumps(answer)) < 50_000
    assert "characters of output, cut in the middle" in kernel.shown(answer)
    assert kernel("while True: print('y' * 1000)", timeout_seconds=0.5)["code"] == "timeout"
    assert kernel.output("import sys; _ = sys.stdout.buffer.write(bytes(range(256)))").count("\ufffd") > 100


def test_nothing_that_a_cell_prints_is_taken_for_an_answer(kernel: Kernel) -> None:
    forged = json.dumps({"id": kernel.kit.snapshot()["asked"] + 1, "ok": True, "head": "forged", "total": 6})
    assert kernel.output(f"print({'0' * 32 + ' ' + forged!r})").startswith("0000")
    code = f"import os\nfor n in (1, 2): os.write(n, {forged.encode()!r} + b'\\n')"
    assert kernel.output(code) == f"{forged}\n{forged}"


@given(st.binary() | st.text().map(lambda t: f"n {t}".encode()) | st.dictionaries(
    st.sampled_from(["id", "head", "total", "ok", "died", "more"]), st.none() | st.integers() | st.text() | st.floats() | st.just(1)
).map(lambda d: f"n {json.dumps(d)}".encode()))  # fmt: skip
def test_any_line_is_an_answer_of_the_right_form_or_none(line: bytes) -> None:
    told = _answer(line, Line("c1", "n", 0, 1))
    if told is not None:
        assert isinstance(told["ok"], bool)
        assert type(told["total"]) is int
        assert told["total"] >= 0
        assert all(isinstance(told[k], str) for k in ("head", "tail", "died") if k in told)


def test_a_cell_that_closes_everything_is_survived(kernel: Kernel) -> None:
    kernel("import sys, os\nsys.stdout.close(); sys.stderr.close(); sys.stdin.close()")
    kernel("os.close(1); os.close(2)")
    kernel.do("ipython_restart")
    assert kernel.output("print('again')") == "again"


def test_late_output_and_children_do_not_hold_up(kernel: Kernel) -> None:
    code = "import threading, time, subprocess\ngo = threading.Event()\n"
    code += "late = threading.Thread(target=lambda: (go.wait(), print('late')))\nlate.start()\n"
    code += "p = subprocess.Popen(['sleep', '60'])"
    started = time.monotonic()
    assert kernel.output(code) == ""
    assert time.monotonic() - started < 10
    assert kernel.output("go.set(); late.join(); p.kill(); p.wait(); print('now')") == "late\nnow"


def test_magic(kernel: Kernel, local: LocalEnvironment) -> None:
    assert kernel.output("!echo $((40 + 2))") == "42"
    assert kernel.output("x = 3\n!echo after\nx") == "after\n3"
    assert kernel.output("s = '''\n%not magic\n'''\ns.strip()") == "'%not magic'"
    assert "is not supported here" in kernel("%timeit 1")["result"]["output"]
    make_wheel(Path(local.workspace))
    target = "--quiet --no-index --no-deps --target lib --upgrade"
    said = kernel.output(f"%pip install {target.replace('--quiet ', '')} tinything-1.0-py3-none-any.whl")
    assert [line for line in said.splitlines() if not line.startswith("WARNING")] == [
        "Successfully installed tinything-1.0"
    ]
    assert kernel.output("import sys; sys.path.insert(0, 'lib')\nimport tinything\ntinything.NAME") == "'tiny'"
    failed = kernel("%pip install --no-index nosuchthing")
    assert "No matching distribution" in failed["result"]["output"]


def make_wheel(folder: Path) -> None:
    info = "tinything-1.0.dist-info"
    with zipfile.ZipFile(folder / "tinything-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tinything.py", "NAME = 'tiny'\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinything\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"tinything.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def test_images_are_named_and_not_shown(kernel: Kernel) -> None:
    assert (
        kernel.output("print('<img src=\"data:image/png;base64,' + 'iVBORw0KGgo' * 900 + '\">')")
        == '<img src="[image/png: not shown]">'
    )
    assert kernel.output(
        "import base64\nbase64.b64encode(bytes.fromhex('89504e470d0a1a0a') + bytes(3000)).decode()"
    ).startswith("'[an image")


def test_modules_of_the_workspace_are_the_cells_and_not_the_kernels(local: LocalEnvironment) -> None:
    folder = Path(local.workspace)
    for name in ("json", "ast", "signal", "traceback", "linecache"):
        (folder / f"{name}.py").write_text("print('of the workspace')\n")
    (folder / "own.py").write_text("VALUE = 5\n")
    try:
        kernel = Kernel(local)
        assert kernel.output("import own\nown.VALUE") == "5"
        kernel.kit.cancel()
    finally:
        for name in ("json", "ast", "signal", "traceback", "linecache"):
            (folder / f"{name}.py").unlink()


def test_a_restart_forgets(kernel: Kernel) -> None:
    kernel.output("old = 1")
    assert "fresh kernel" in kernel.do("ipython_restart")["result"]
    assert kernel.output("'old' in globals()") == "False"


def test_the_kernel_goes_on_for_a_later_process(kernel: Kernel, local: LocalEnvironment) -> None:
    kernel.output("kept = 'still here'")
    later = Kernel(local)
    later.kit.restore(json.loads(json.dumps(kernel.kit.snapshot())))
    assert later.output("kept") == "'still here'"
    kernel.kit.restore(later.kit.snapshot())
    gone = Kernel(local)
    gone.kit.restore({**kernel.kit.snapshot(), "command": "c9999"})
    assert gone("kept")["code"] == "kernel_died"
    for wrong in (3, {}, {"command": "c1", "offset": "x"}):
        with pytest.raises(ValueError, match="not the state of a kernel"):
            gone.kit.restore(wrong)


def test_a_run_that_is_cancelled_interrupts_the_cell(kernel: Kernel, tmp_path: Path) -> None:
    kernel.output("kept = 1")
    sleeps = tmp_path / "sleeps"

    def cancel() -> None:
        while not sleeps.exists():
            time.sleep(0.01)
        kernel.kit.cancel()

    cancelling = threading.Thread(target=cancel, daemon=True)
    cancelling.start()
    started = time.monotonic()
    answer = kernel(f"import time, pathlib\npathlib.Path({str(sleeps)!r}).touch()\ntime.sleep(60)")
    cancelling.join(60)
    assert time.monotonic() - started < 20
    assert "KeyboardInterrupt" in answer["result"]["output"]
    assert kernel.output("kept") == "1"


def test_long_and_odd_code(kernel: Kernel) -> None:
    assert kernel.output("s = '''" + "ü\n" * 60_000 + "'''\nlen(s)") == "120000"
    assert kernel("x = '\0'")["result"]["ok"] is False
    assert kernel.output("# \u2028 only a comment\n") == ""


def test_where_there_is_no_python(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    with LocalEnvironment(env={"PATH": str(tmp_path / "bin")}) as environment:
        answer = Kernel(environment)("1")
    assert answer["code"] == "operation_not_supported"
    assert "no python3" in answer["error"]
