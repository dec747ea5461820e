"""One place for an operation: it is declared in one file of the host and one of the guest, and is everywhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter

from sandbox.environment.generated import write
from sandbox.guest.loop.operations import OPERATIONS as GUEST_OPERATIONS
from sandbox.guest.loop.operations import WORKER
from sandbox.operations import OPERATIONS, Request

ROOT = Path(__file__).resolve().parents[4]

HOST = '''

class ShoutResult(Result):
    """What was shouted."""

    words: str

    def _words(self) -> str:
        return f"[{self.words}]"


@operation("shout", ShoutResult, repeatable=True)
class Shout(Request):
    """Say something loudly."""

    words: str = Field(min_length=1, description="What to say.")
    times: int = Field(1, ge=1, description="How often.")
'''
GUEST = '''

def shout(call):
    return {"words": " ".join([call.args["words"] + "!"] * call.args["times"])}


OPERATIONS["shout"] = Operation(
    "shout", WORKER, "loop.operations:shout", {"words": a.text}, {"times": a.count}, only_looks=True
)
'''
CALLS = '''
import asyncio, inspect, json
from agent.tools import SandboxAction, sandbox_tools
from sandbox import AsyncEnvironment, LocalEnvironment
from sandbox.operations import OPERATIONS, schema_of
from sandbox.operations.usage import Shout

async def in_a_loop(env):
    return (await AsyncEnvironment(env).shout("hi", times=2)).unwrap().words

with LocalEnvironment() as env:
    env.secret("TOKEN", "hush-hush-hush")
    print(json.dumps({
        "method": env.shout("hi").unwrap().words,
        "signature": str(inspect.signature(env.shout)),
        "coroutine": asyncio.run(in_a_loop(env)),
        "execute": env.execute("shout", {"words": "hi", "times": 2}).to_text(),
        "perform": env.perform(Shout(words="hi")).unwrap().words,
        "tool": env.execute_action(SandboxAction("shout"), {"words": "hi"})["result"],
        "offered": [tool.name for tool in sandbox_tools()].count("shout"),
        "schema": schema_of(OPERATIONS["shout"])["properties"]["words"],
        "wrong": env.execute("shout", {"word": "hi"}).to_dict()["code"],
        "checked inside": env._live().request("shout", {"words": 5}, timeout_seconds=5)[0]["fault"],
        "masked": env.shout("hush-hush-hush").unwrap().words,
    }))
'''


def test_the_generated_methods_are_those_of_the_table() -> None:
    """After a change of the table: ``python -m sandbox.environment.generated.write``."""
    assert (write.FOLDER / "methods.py").read_text() == write.sync_source()
    assert (write.FOLDER / "coroutines.py").read_text() == write.async_source()


def test_both_tables_have_the_same_operations() -> None:
    of_the_host_itself = {"begin", "live_for", "resumed", "scan", "fetch", "restore", "last_changes"}
    assert set(GUEST_OPERATIONS) == set(OPERATIONS) | of_the_host_itself
    for name, request in OPERATIONS.items():
        row = GUEST_OPERATIONS[name]
        assert not (request.changes_files and row.only_looks), name
        assert request.repeatable or not row.only_looks, name


@pytest.mark.parametrize("request_type", OPERATIONS.values(), ids=OPERATIONS)
def test_none_may_be_left_out_of_a_call_where_it_is_the_default(request_type: type[Request]) -> None:
    """Else a None that was given would not be refused."""
    assert request_type.none_by_default == {
        name for name, field in request_type.model_fields.items() if field.default is None
    }
    for name in request_type.none_by_default:
        field = request_type.model_fields[name]
        kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        assert TypeAdapter(kind).validate_python(None, strict=True) is None, name


def test_every_worker_s_handler_is_there() -> None:
    for row in GUEST_OPERATIONS.values():
        assert row.kind != WORKER or callable(row.in_worker()), row.name


def test_an_operation_is_declared_twice() -> None:
    from sandbox.operations import Read, ReadResult, operation

    with pytest.raises(ValueError, match="'read' is declared twice"):
        operation("read", ReadResult)(Read)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a copy of the packages says of ``shout``, which was added to one file of the host and one of the guest."""
    copy = tmp_path_factory.mktemp("copy")
    for package in ("sandbox", "agent"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file, added in (("sandbox/operations/usage.py", HOST), ("sandbox/guest/loop/operations.py", GUEST)):
        with (copy / file).open("a") as declarations:
            declarations.write(added)

    def run(*args: str) -> str:
        program = [sys.executable, "-B", *args]
        done = subprocess.run(program, cwd=copy, env={"PYTHONPATH": str(copy)}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-c", "import sandbox; print(sandbox.__file__)").startswith(str(copy))
    run("-m", "sandbox.environment.generated.write")
    found: dict[str, Any] = json.loads(run("-c", CALLS))
    return found


@pytest.mark.parametrize(
    ("where", "answer"),
    [
        ("method", "hi!"),
        ("signature", "(words: 'str', *, times: 'int' = 1) -> 'Envelope[op.ShoutResult]'"),
        ("coroutine", "hi! hi!"),
        ("execute", "[hi! hi!]"),
        ("perform", "hi!"),
        ("tool", {"words": "hi!"}),
        ("offered", 1),
        ("schema", {"type": "string", "minLength": 1, "description": "What to say."}),
        ("wrong", "invalid_arguments"),
        ("masked", "***TOKEN***!"),
    ],
)
def test_an_operation_of_one_file_on_each_side_is_everywhere(answers: dict[str, Any], where: str, answer: Any) -> None:
    assert answers[where] == answer


def test_the_guest_checks_the_arguments_of_a_new_operation(answers: dict[str, Any]) -> None:
    assert answers["checked inside"]["code"] == "invalid_arguments"
    assert answers["checked inside"]["fields"] == {"problem": "words of shout cannot be 5"}


@pytest.mark.parametrize("first", ["terminals", "usage", "wire", "state"])
def test_the_table_is_in_its_order_whichever_file_was_loaded_first(first: str) -> None:
    code = f"import sandbox.operations.{first}, sandbox.operations as op; print(*op.OPERATIONS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == list(OPERATIONS)


def test_threads_that_use_the_first_operations_at_once_all_find_them() -> None:
    code = (
        "import threading, sandbox.operations as op\n"
        "from sandbox.environment.parts.loading import load_meanwhile\n"
        "gate, seen = threading.Barrier(8), []\n"
        "def use(name):\n"
        "    gate.wait(30)\n"
        "    load_meanwhile(connections=True)\n"
        "    seen.append((getattr(op, name).__name__, len(op.OPERATIONS)))\n"
        "names = ['Usage', 'Read', 'Run', 'WaitFor', 'Screen', 'PatchResult', 'Result', 'Browse']\n"
        "threads = [threading.Thread(target=use, args=(name,)) for name in names]\n"
        "[each.start() for each in threads], [each.join(30) for each in threads]\n"
        "assert sorted(seen) == sorted((name, len(op.OPERATIONS)) for name in names), seen\n"
        "assert op.is_loaded()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_sandbox_without_connections_does_not_load_what_they_need() -> None:
    code = (
        "import sys\n"
        "from sandbox.local.environment import LocalEnvironment\n"
        "with LocalEnvironment() as env:\n"
        "    env.run('true').unwrap()\n"
        "    assert 'asyncio' not in sys.modules\n"
        "    env.forward(8000).unwrap()\n"
        "    assert 'asyncio' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_command_loads_the_operations_on_commands_alone() -> None:
    """`gamebox run` starts a sandbox meanwhile: what it loads is time that its user waits."""
    code = (
        "import sys, sandbox.operations as op\n"
        "assert op.find('run') is op.Run and op.HostArguments and not op.is_loaded()\n"
        "assert not {'sandbox.operations.files', 'sandbox.operations.sessions'} & set(sys.modules)\n"
        "assert op.find('read') is op.Read and op.find('nothing') is None and op.is_loaded()\n"
        "print(*op.OPERATIONS)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == list(OPERATIONS)


def test_an_operation_is_found_when_all_that_it_uses_is_there() -> None:
    code = (
        "import threading, sandbox.operations as op\n"
        "from sandbox.operations import commands, table\n"
        "from sandbox.limits import Limits\n"
        "def use():\n"
        "    while 'write' not in table.OPERATIONS: pass\n"
        "    op.find('write').model_validate({'path': 'a', 'content': 'b'}).prepare(Limits())\n"
        "    print('prepared')\n"
        "user = threading.Thread(target=use)\n"
        "user.start(), op.find('usage'), user.join()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "prepared\n", done.stderr


@pytest.mark.parametrize(
    ("statement", "is_loaded"),
    [("import sandbox.docker.environment", False), ("from sandbox import DockerEnvironment", True)],
)
def test_operations_come_with_an_environment_of_sandbox_and_not_with_its_module(statement: str, is_loaded: bool) -> None:
    late = ("pydantic", "sandbox.pipe.transport", "sandbox.operations.files", "asyncio")
    code = f"{statement}; import sys; print(*(name in sys.modules for name in {late}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [str(is_loaded)] * len(late)
