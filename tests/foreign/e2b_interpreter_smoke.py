"""What programs do with the code interpreter of E2B, and what hostile code does to it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2b import TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Any]:
    made = Sandbox.create(timeout=600, envs={"COLOUR": "red"})
    yield made
    assert made.kill()


def test_python(sandbox: Any) -> None:
    heard: list[str] = []
    first = sandbox.run_code("import os; x = 2; print(os.environ['COLOUR'])", on_stdout=lambda line: heard.append(line.line))
    assert (heard, first.error, first.execution_count) == (["red\n"], None, 1)
    assert sandbox.run_code("x + 1").text == "3"
    assert sandbox.run_code("os.environ['A']", envs={"A": "b"}).text == "b"
    wrong = sandbox.run_code("os.environ['A']").error
    assert (wrong.name, "KeyError" in wrong.traceback) == ("KeyError", True)
    assert "2.11" in "".join(sandbox.run_code("!echo 2.11").logs.stdout)
    assert sandbox.run_code("input()").error.name == "StdinNotImplementedError"
    assert sandbox.run_code("import asyncio; await asyncio.sleep(0); 'done'").text == "done"


def test_results(sandbox: Any) -> None:
    code = "import pandas as pd; pd.DataFrame({'a': [1, float('nan')], 'b': [pd.Timestamp(0), pd.NaT]})"
    table = sandbox.run_code(code).results[0]
    assert table.data == {"a": [1.0, None], "b": ["1970-01-01T00:00:00", None]}
    assert "<table" in table.html
    figure = sandbox.run_code("import matplotlib.pyplot as plt; plt.bar(['x', 'y'], [3, 4]); plt.title('T'); plt.show()").results[0]
    assert (figure.chart.title, figure.chart.elements[0].value, bool(figure.png)) == ("T", 3, True)
    code = "from IPython.display import *; display(Markdown('*m*'), Latex('$l$'), SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'))"
    formats = [name for each in sandbox.run_code(f"{code}; [1, {{'a': 2}}]").results for name in each.formats()]
    assert {"markdown", "latex", "svg", "json", "text"} <= set(formats)


def test_bash_and_other_languages(sandbox: Any) -> None:
    assert sandbox.run_code("cd /tmp; x=1", language="bash").error is None
    found = sandbox.run_code("pwd; echo $x; echo oh >&2; false", language="bash")
    assert ("".join(found.logs.stdout), "".join(found.logs.stderr)) == ("/tmp\n1\n", "oh\n")
    assert (found.error.name, found.error.value) == ("ExitCode", "1")
    with pytest.raises(Exception, match="use python or bash"):
        sandbox.run_code("1", language="r")


def test_contexts(sandbox: Any) -> None:
    context = sandbox.create_code_context(cwd="/tmp", language="python")
    assert sandbox.run_code("import os; x = 1; os.getcwd()", context=context).text == "/tmp"
    sandbox.restart_code_context(context)
    assert sandbox.run_code("x", context=context).error.name == "NameError"
    sandbox.remove_code_context(context)
    with pytest.raises(Exception, match="not found"):
        sandbox.run_code("1", context=context)


def test_what_runs_too_long_and_what_dies(sandbox: Any) -> None:
    with pytest.raises(TimeoutException):
        sandbox.run_code("kept = 1; import time; time.sleep(300)", timeout=2)
    assert sandbox.run_code("kept").text == "1", "an interrupt loses nothing"
    died = sandbox.run_code("import os; os._exit(3)").error
    assert (died.name, "status 3" in died.value) == ("ContextRestarting", True)
    assert sandbox.run_code("kept").error.name == "NameError"
    much = sandbox.run_code("print('x' * 100_000_000)")
    assert "bytes of output were left out" in "".join(much.logs.stderr)
    sandbox.commands.run("pkill -f [g]amebox-interpreter/server.py")
    time.sleep(1)
    assert sandbox.run_code("'anew'").text == "anew", "the server is started again"


def test_interrupts_lose_nothing(sandbox: Any) -> None:
    with pytest.raises(TimeoutException):
        sandbox.run_code("awaited = 1; import asyncio; await asyncio.sleep(300)", timeout=2)
    assert sandbox.run_code("awaited").text == "1"
    context = sandbox.create_code_context(language="bash")
    for code in ("sleep 300", f"sleep 300; : {'x' * 200_000}"):
        with pytest.raises(TimeoutException):
            sandbox.run_code(code, context=context, timeout=0.5, envs={"OF_ONE": "x"})
        assert sandbox.run_code("echo ${OF_ONE-none}", context=context).logs.stdout == ["none\n"]
    sandbox.remove_code_context(context)


def test_what_programs_print_is_there_when_the_cell_ends(sandbox: Any) -> None:
    code = "import os, subprocess; subprocess.run('seq 1 20000', shell=True); os.write(2, 'ä'.encode()); None"
    expected = "".join(f"{number}\n" for number in range(1, 20001))
    for _ in range(20):
        found = sandbox.run_code(code).logs
        assert ("".join(found.stdout), "".join(found.stderr)) == (expected, "ä")


def test_memory_does_not_grow_with_what_is_printed(sandbox: Any) -> None:
    much = sandbox.run_code("for _ in range(1500): print('x' * 1_000_000)")
    assert sum(map(len, much.logs.stdout)) < 32 << 20
    assert "bytes of output were left out" in "".join(much.logs.stderr)
    peaks = "import resource; resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024"
    assert int(sandbox.run_code(peaks).text) < 800
    server = "grep VmHWM /proc/$(pgrep -of [g]amebox-interpreter/server.py)/status | tr -dc 0-9"
    assert int(sandbox.commands.run(server).stdout) // 1024 < 800


def test_it_goes_on_after_a_pause(sandbox: Any) -> None:
    sandbox.run_code("paused = 1")
    sandbox.pause()
    again = Sandbox.connect(sandbox.sandbox_id, timeout=600)
    assert again.run_code("paused").text == "1"


def test_who_has_no_token_runs_no_code(sandbox: Any) -> None:
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49999"}
    address = os.environ["E2B_SANDBOX_URL"]
    assert httpx.post(f"{address}/execute", headers=headers, json={"code": "1"}).status_code == 403
    assert httpx.get(f"{address}/contexts", headers=headers).status_code == 200


def test_asynchronous() -> None:
    async def work() -> None:
        sandbox = await AsyncSandbox.create(timeout=120)
        try:
            heard: list[str] = []
            found = await sandbox.run_code("print(1); 2", on_stdout=lambda line: heard.append(line.line))
            assert (heard, found.text) == (["1\n"], "2")
        finally:
            await sandbox.kill()

    asyncio.run(work())
