"""The part of the code interpreter that needs no library: shells whose cells keep their state, and bounded outputs."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[4] / "images/code-interpreter/interpreter"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The modules of the image that this host can import; they have short names there."""
    names = ("errors", "outputs", "bash_shell", "contexts")
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


async def lines(outputs: Any) -> list[dict[str, Any]]:
    outputs.close()
    found = b""
    while (taken := await outputs.take()) is not None:
        found += taken
    return [json.loads(each) for each in found.splitlines()]


def texts(found: list[dict[str, Any]], kind: str) -> str:
    return "".join(each["text"] for each in found if each["type"] == kind)


def test_cells_of_a_shell(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    async def work() -> None:
        shell = modules["bash_shell"].BashShell(str(tmp_path))

        async def run(code: str, **env: str) -> list[dict[str, Any]]:
            outputs = modules["outputs"].Outputs()
            await shell.run(code, env, outputs)
            return await lines(outputs)

        await shell.start()
        try:
            assert texts(await run("pwd; x=1; f() { echo \"f $1\"; }; cat"), "stdout") == f"{tmp_path}\n", "its input is empty"
            found = await run("f $x; echo oh >&2; (exit 3)")
            assert (texts(found, "stdout"), texts(found, "stderr")) == ("f 1\n", "oh\n")
            assert [(each["name"], each["value"]) for each in found if each["type"] == "error"] == [("ExitCode", "3")]
            assert found[0] == {"type": "number_of_executions", "execution_count": 2}
            assert texts(await run("echo $x $y", x="a b'c", y="\n"), "stdout") == "a b'c\n"
            assert texts(await run("echo $x ${y-none}"), "stdout") == "1 none\n", "variables of one cell are undone"
            assert texts(await run("echo '$((' \"!\"; echo 'a\nb'"), "stdout") == "$(( !\na\nb\n"
            assert [each["value"] for each in await run("if ((") if each["type"] == "error"] == ["2"]
            assert len(texts(await run("head -c 300000 /dev/zero | tr '\\0' 'ä'"), "stdout").encode()) > 299_000
        finally:
            await shell.stop()

    asyncio.run(work())


def test_a_shell_starts_whatever_descriptors_are_open(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    """The interpreter has some more with each shell: one of its pipes may have the number that bash is to see another one under."""

    async def cell() -> str:
        shell, outputs = modules["bash_shell"].BashShell(str(tmp_path)), modules["outputs"].Outputs()
        try:
            async with asyncio.timeout(5):
                await shell.start()
                await shell.run("echo here", {}, outputs)
        finally:
            await shell.stop()
        return texts(await lines(outputs), "stdout")

    lowest: int = modules["bash_shell"].LOWEST_DESCRIPTOR
    held: list[int] = []
    try:
        while not held or held[-1] <= lowest:
            held.append(os.open(os.devnull, os.O_RDONLY))
            if held[-1] > lowest - 16:
                assert asyncio.run(cell()) == "here\n", held[-1]
    finally:
        for each in held:
            os.close(each)


def test_a_shell_is_interrupted_and_dies(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    async def work() -> None:
        shell, outputs = modules["bash_shell"].BashShell(str(tmp_path)), modules["outputs"].Outputs()
        await shell.start()
        try:
            running = asyncio.ensure_future(shell.run("echo begun; sleep 600; echo never", {}, outputs))
            while b"begun" not in (await outputs.take() or b""):
                pass
            shell.interrupt()
            await running
            found = await lines(outputs)
            assert texts(found, "stdout") == "", "the rest of the cell is not run"
            assert [each["value"] for each in found if each["type"] == "error"] == ["130"]
            outputs = modules["outputs"].Outputs()
            await shell.run("echo again", {}, outputs)
            assert texts(await lines(outputs), "stdout") == "again\n"
            with pytest.raises(modules["errors"].KernelDiedError, match="status 4"):
                await shell.run("exit 4", {}, modules["outputs"].Outputs())
            assert not shell.alive
        finally:
            await shell.stop()

    asyncio.run(work())


async def ran(modules: dict[str, ModuleType], shell: Any, code: str, **env: str) -> tuple[str, str, list[str]]:
    """What a cell wrote to stdout and stderr, and the values of its errors."""
    outputs = modules["outputs"].Outputs()
    async with asyncio.timeout(20):
        await shell.run(code, env, outputs)
    found = await lines(outputs)
    return texts(found, "stdout"), texts(found, "stderr"), [each["value"] for each in found if each["type"] == "error"]


@pytest.mark.parametrize(
    ("code", "seconds", "cells"),
    [("sleep 600", 0.004, 60), (f"sleep 600; : {'x' * 200_000}", 0.05, 15), ("sleep 0.003", 0.012, 60)],
    ids=["soon", "before all of it is written", "about its end"],
)
def test_whenever_a_cell_is_interrupted_the_next_one_is_run(
    modules: dict[str, ModuleType], tmp_path: Path, code: str, seconds: float, cells: int
) -> None:
    async def work() -> None:
        shell, chance = modules["bash_shell"].BashShell(str(tmp_path)), random.Random(5)
        await shell.start()
        try:
            for number in range(cells):
                cell = asyncio.ensure_future(ran(modules, shell, f"echo of {number}; {code}", OF_ONE_CELL="x"))
                await asyncio.sleep(chance.random() * seconds)
                shell.interrupt()
                out, err, errors = await cell
                assert (out in ("", f"of {number}\n"), err.strip(), errors) in ((True, "", []), (True, "", ["130"])), number
                assert await ran(modules, shell, f"echo {number} ${{OF_ONE_CELL-none}}") == (f"{number} none\n", "", [])
        finally:
            await shell.stop()

    asyncio.run(work())


def test_a_shell_that_is_ended_touches_nothing_that_is_opened_then(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    """Its pipes are closed, and files opened meanwhile have their numbers: reading one could wait for ever, writing spoils it."""

    async def work() -> None:
        shell = modules["bash_shell"].BashShell(str(tmp_path))
        await shell.start()
        cell = asyncio.ensure_future(ran(modules, shell, "trap '' INT; while :; do sleep 1; done"))
        await asyncio.sleep(0.2)
        shell.interrupt()
        await shell.stop()
        ends = [os.pipe() for _ in range(5)]
        with pytest.raises(modules["errors"].KernelDiedError):
            await cell
        await asyncio.sleep(2 * modules["bash_shell"].AGAIN_SECONDS)
        for read, write in ends:
            os.close(write)
            assert os.read(read, 100) == b""
            os.close(read)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        *((f"exec {n}>log; echo hi >&{n}", f"echo ho >&{n}; cat log", "hi\nho\n") for n in (10, 11, 12, 200)),
        ("exec 10>&-", "echo on", "on\n"),
        ("kill -INT $$; echo never", "echo on", "on\n"),
        ("PS1='me> '; PROMPT_COMMAND='echo prompt'", "echo on", "on\n"),
        ("alias printf=false read=false; shopt -s expand_aliases; printf() { false; }", "echo on", "on\n"),
        ("printf '\\xc3'", "echo on", "on\n"),
    ],
)
def test_what_cells_do_to_their_shell(
    modules: dict[str, ModuleType], tmp_path: Path, first: str, then: str, expected: str
) -> None:
    async def work() -> None:
        shell = modules["bash_shell"].BashShell(str(tmp_path))
        await shell.start()
        try:
            assert "never" not in (await ran(modules, shell, first))[0]
            assert await ran(modules, shell, then) == (expected, "", [])
        finally:
            await shell.stop()

    asyncio.run(work())


def test_a_context_whose_shell_has_ended_says_so_once(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    async def work() -> None:
        context = modules["contexts"].Context("bash", str(tmp_path))

        async def told(code: str) -> list[dict[str, Any]]:
            outputs = modules["outputs"].Outputs()
            await context.execute(code, {}, outputs)
            return await lines(outputs)

        assert texts(await told("echo $$"), "stdout").strip().isdigit()
        shell = await context.ready()
        os.kill(shell._process.pid, signal.SIGKILL)
        await shell._process.wait()
        (lost,) = [each for each in await told("touch run") if each["type"] == "error"]
        assert (lost["name"], "was not run" in lost["value"]) == ("ContextRestarting", True)
        assert not (tmp_path / "run").exists()
        (ended,) = [each["value"] for each in await told("exit 4") if each["type"] == "error"]
        assert ended.startswith("bash ended with status 4.")
        assert texts(await told("echo anew"), "stdout") == "anew\n"
        await context.close()

    asyncio.run(work())


def test_what_waits_for_a_context_that_is_removed_is_not_run(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    async def work() -> None:
        contexts = modules["contexts"].Contexts()
        context = contexts.create("bash", str(tmp_path))
        before = len(os.listdir("/proc/self/fd"))
        outputs = [modules["outputs"].Outputs() for _ in range(3)]
        waiting = [asyncio.ensure_future(context.execute("sleep 600; touch run", {}, outputs[0]))]
        while b"executions" not in (await outputs[0].take() or b""):
            pass
        waiting += [asyncio.ensure_future(context.execute("touch run", {}, each)) for each in outputs[1:]]
        await asyncio.sleep(0)
        await contexts.remove(context.id)
        await asyncio.gather(*waiting)
        for each in outputs:
            assert [line["value"] for line in await lines(each) if line["type"] == "error"] == ["The context was removed."]
        assert not (tmp_path / "run").exists()
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(work())


def test_outputs_are_bounded_and_say_so(modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules["outputs"], "MOST_BYTES", 1000)

    async def work() -> None:
        outputs = modules["outputs"].Outputs()
        outputs.stream("stdout", "\0" * 100, "")
        outputs.stream("stdout", "a" * 2000, "")
        outputs.stream("stdout", "b", "")
        outputs.result({"text/plain": "c" * 1000}, is_main=True)
        outputs.error("E", "f")
        outputs.error("second", "g")
        found = await lines(outputs)
        assert "a" in texts(found, "stdout")
        assert "b" not in texts(found, "stdout")
        assert sum(len(json.dumps(each)) for each in found if each["type"] == "stdout") <= 1000
        assert "bytes of output were left out" in texts(found, "stderr")
        assert [each["name"] for each in found if each["type"] == "error"] == ["E"]
        assert found[-1] == {"type": "end_of_execution"}

    asyncio.run(work())


def test_results_have_the_fields_of_clients(modules: dict[str, ModuleType]) -> None:
    async def work() -> None:
        outputs = modules["outputs"].Outputs()
        data = {"text/plain": "'x'", "image/png": "aGk=", "e2b/chart": {}, "e2b/data": {"a": [float("nan")]}, "a/b": 1}
        outputs.result(data, is_main=True)
        (result, _) = await lines(outputs)
        assert result == {
            "type": "result", "is_main_result": True, "text": "x", "png": "aGk=", "data": {"a": [None]}, "extra": {"a/b": 1}
        }  # fmt: skip

    asyncio.run(work())
