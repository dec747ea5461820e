"""The pytest plugin without an engine: options and markers, suites that do not use it, and what a hostile sandbox prints."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from sandbox import Limits, Network, PackageCache, Service
from sandbox.envelope import Notice
from sandbox.network.connections import Connection
from sandbox.pytest_plugin import inspection, options
from sandbox.pytest_plugin.inspection import Changes, Snapshot, changes
from sandbox.pytest_plugin.options import OptionsError, checked, of_marks, put_together, reason_to_skip
from sandbox.pytest_plugin.postmortem import collect, save
from sandbox.pytest_plugin.recorded import ENTRIES, OUTPUT_CHARS, RecordedLocal, cut
from sandbox.ready import NotReadyError, wait_for_file

pytest_plugins = ["pytester"]


@pytest.fixture
def local() -> Iterator[RecordedLocal]:
    with RecordedLocal() as env:
        yield env


def test_loading_it_loads_nothing_of_weight() -> None:
    code = (
        "import sys, pytest, importlib.util; before = set(sys.modules); import gamebox_pytest; "
        "print(sorted(m for m in set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['gamebox_pytest']"


@pytest.fixture
def foreign(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project that has a package and a module with the names of ours (finding UX 3)."""
    pytester.makepyfile(**{"sandbox/__init__": "NAME = 'theirs'", "agent": "NAME = 'theirs'"})
    pytester.makepyfile("""
import agent, sandbox as of_the_project

def test_theirs():
    assert of_the_project.NAME == agent.NAME == "theirs"
""")
    return pytester


@pytest.mark.parametrize("program", [[sys.executable, "-m", "pytest"], [str(Path(sys.executable).with_name("pytest"))]])
def test_a_project_with_a_package_sandbox_of_its_own_gets_one_line_and_is_left_alone(
    foreign: pytest.Pytester, program: list[str]
) -> None:
    foreign.makeconftest("")  # with one, plain pytest puts the folder first on the path of imports, too
    done = foreign.run(*program)
    done.assert_outcomes(passed=1)
    (line,) = [line for line in done.outlines + done.errlines if "gamebox:" in line]
    assert line == (
        "gamebox: the fixtures sandbox and sandbox_session are not available: 'sandbox' is not Gamebox's package here, but "
        f"{foreign.path / 'sandbox/__init__.py'}."
    )
    assert "warning" not in done.stdout.str()


def test_where_the_package_is_hidden_asking_for_a_sandbox_fails_in_one_sentence(foreign: pytest.Pytester) -> None:
    foreign.makepyfile(test_asking="def test_asking(sandbox): pass\n")
    done = foreign.runpytest_subprocess("test_asking.py")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["the fixtures sandbox and sandbox_session are not available: *sandbox/__init__.py."])
    assert "Traceback" not in done.stdout.str()
    option = foreign.runpytest_subprocess("--sandbox-image", "alpine")
    assert option.ret == pytest.ExitCode.USAGE_ERROR
    option.stderr.fnmatch_lines(["*--sandbox-image*not available*"])


def test_a_suite_with_a_sandbox_of_its_own_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\naddopts = --strict-markers\nmarkers = sandbox: ours\n")
    pytester.makepyfile("""
import sys
import pytest

@pytest.fixture
def sandbox():
    return "ours"

@pytest.mark.sandbox("any", thing="goes")
def test_ours(sandbox):
    assert sandbox == "ours"
    assert not {"docker", "pydantic", "sandbox.docker"} & set(sys.modules)

def test_that_fails():
    assert False
""")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.no_fnmatch_line("*post-mortem*")


@pytest.mark.exhaustive
def test_a_fixture_may_extend_ours_and_its_markers_are_checked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
import pytest

@pytest.fixture
def sandbox(sandbox):
    sandbox.write("prepared", "yes").unwrap()
    return sandbox

@pytest.mark.sandbox(local=True)
def test_a(sandbox):
    assert sandbox.read("prepared").unwrap().content == "yes"

@pytest.mark.sandbox(imge=True)
def test_b(sandbox): pass
""")
    pytester.runpytest_subprocess("-k", "not test_b").assert_outcomes(passed=1, deselected=1)
    assert pytester.runpytest_subprocess().ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.exhaustive
def test_wrong_markers_are_usage_errors_before_any_test_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
import pytest

@pytest.mark.sandbox(imge="alpine")
def test_a(sandbox): pass

@pytest.mark.sandbox(image="alpine")
def test_b(sandbox_session): pass

def test_c(): print("it ran")
""")
    result = pytester.runpytest_subprocess("-s")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([
        "*test_a: @pytest.mark.sandbox has no argument 'imge' (given: imge='alpine'): it takes image, network, *",
        "*test_b: @pytest.mark.sandbox does not reach sandbox_session*",
    ])  # fmt: skip
    assert "it ran" not in result.stdout.str()
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    parallel = pytester.runpytest_subprocess("-n", "2")
    parallel.assert_outcomes(errors=2, passed=1)
    parallel.stdout.fnmatch_lines(["*has no argument 'imge'*"])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sandbox-network", "host"], "network='host' is not possible: give 'none', 'open', 'bridge' or a Network."),
        (["--sandbox-local", "--sandbox-image", "x"], "--sandbox-local and --sandbox-image contradict each other"),
        (["--sandbox-image", ""], "image='' is not possible"),
    ],
)
def test_wrong_options_are_usage_errors(pytester: pytest.Pytester, arguments: list[str], words: str) -> None:
    pytester.makepyfile("def test_a(): pass")
    result = pytester.runpytest_subprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert words in result.stderr.str()
    assert "Traceback" not in result.stderr.str()


def test_markers_of_function_class_and_module_are_put_together_the_closest_first() -> None:
    marks = [
        pytest.mark.sandbox(image="of-the-function").mark,
        pytest.mark.sandbox(image="of-the-class", network="bridge", limits={"pids": 64}).mark,
        pytest.mark.sandbox(image="of-the-module", network="none", env={"A": "1"}).mark,
    ]
    assert of_marks(marks) == {
        "image": "of-the-function", "network": Network.bridge(), "limits": Limits(pids=64), "env": {"A": "1"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"limits": {"memory": 1}}, "limits has no 'memory'; it takes memory_bytes"),
        ({"limits": {"pids": 0}}, "Limits(pids=0) is not allowed"),
        ({"limits": 5}, "limits=5 is not possible: give a Limits or a dict of its fields"),
        ({"env": {"A": 1}}, "env={'A': 1} is not possible: give a dict of texts"),
        ({"workspace": 7}, "workspace=7 is not possible: give the path of a folder"),
        ({"local": "yes"}, "local='yes' is not possible: give True or False"),
        ({"image": 3}, "image=3 is not possible: give its name as a text"),
        ("gamebox/base", "must be a dict, not 'gamebox/base'"),
    ],
)
def test_wrong_values_are_named_with_what_is_possible(given: object, words: str) -> None:
    with pytest.raises(OptionsError) as caught:
        checked(given, "here")
    assert str(caught.value).startswith("here")
    assert words in str(caught.value)


def test_local_contradicts_what_only_a_container_has() -> None:
    for only in ({"image": "x"}, {"network": "none"}, {"profile": "root"}, {"limits": {"memory_bytes": 64 << 20}}):
        with pytest.raises(OptionsError, match="contradicts"):
            of_marks([pytest.mark.sandbox(local=True, **only).mark])
    assert of_marks([pytest.mark.sandbox(local=True, network="bridge", limits={"timeout_seconds": 5}).mark])["local"]


def test_every_limit_is_kept_without_a_container_or_is_one_of_containers() -> None:
    of_containers = {f.name for f in fields(Limits) if f.metadata.get("of_containers")}
    assert {"memory_bytes", "pids", "disk", "open_files", "network_bytes"} < of_containers
    for name in {f.name for f in fields(Limits)} - of_containers:
        limits = Limits(**{name: 7})  # type: ignore[arg-type]
        assert reason_to_skip({"limits": limits}, {"local": True}) is None, name
    assert "pids=64" in str(reason_to_skip({"limits": Limits(pids=64)}, {"local": True}))


def test_who_asks_for_local_gets_it_without_the_defaults_of_containers() -> None:
    line, project = {"local": True}, {"image": "x", "network": Network.none(), "env": {"A": "1"}}
    assert put_together({}, line, project) == {"local": True, "env": {"A": "1"}}
    assert put_together({"local": False}, line, project) == {"local": False, **project}


def test_tests_that_need_a_container_are_skipped_without() -> None:
    local = {"local": True}
    assert reason_to_skip({}, local) is None
    assert reason_to_skip({"env": {"A": "1"}}, local) is None
    assert reason_to_skip({"image": "x"}, {}) is None
    assert "image='x'" in str(reason_to_skip({"image": "x"}, local))
    assert reason_to_skip({"local": False}, {"local": False}) is None


@pytest.mark.exhaustive
def test_a_missing_workspace_is_an_error_of_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
import pytest

@pytest.mark.sandbox(workspace="not-there")
def test_a(sandbox): pass
""")
    result = pytester.runpytest_subprocess("--sandbox-local")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["The sandbox could not be started: *not-there*"])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.exhaustive
def test_a_failure_in_the_tear_down_tells_what_was_asked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
import pytest

@pytest.fixture
def checked(sandbox):
    yield
    assert sandbox.run("echo checked; exit 9").unwrap().exit_code == 0

@pytest.mark.sandbox(local=True)
def test_a(sandbox, checked):
    sandbox.run("echo asked")
""")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["THE SANDBOX IS GONE: it was closed*", "*: run echo asked -> exit code 0", "*-> exit code 9"]
    )


# --- what is remembered ------------------------------------------------------------------
def test_memory_of_operations_is_bounded(local: RecordedLocal) -> None:
    for n in range(ENTRIES + 5):
        local.read(f"missing-{n}")
    local.run("head -c 60000 /dev/zero | tr '\\0' x")
    entries = local.record.since(0)
    assert len(entries) == ENTRIES
    assert entries[0].subject == "missing-6"
    assert len(entries[-1].output) < OUTPUT_CHARS + 100
    assert entries[-1].output_bytes == 60000
    found = collect("t", "call", "sandbox", local, None, 0)
    assert "operations of this test (206, the first 6 of them forgotten):" in found.to_text()
    assert "file changes: not known, no list was made when the test began" in found.to_text()


def test_operations_of_many_threads_are_all_remembered(local: RecordedLocal) -> None:
    threads = [threading.Thread(target=local.run, args=(f"echo {n}",), kwargs={"session": None}) for n in range(12)]
    for thread in threads:
        thread.start()
    with local.unrecorded():
        local.run("echo unseen")
    for thread in threads:
        thread.join()
    entries = local.record.since(0)
    assert sorted(int(e.output) for e in entries) == list(range(12))
    assert sorted(e.number for e in entries) == list(range(1, 13))


def test_secrets_of_a_command_are_not_remembered(local: RecordedLocal) -> None:
    local.run("true", env={"TOKEN": "hunter2"}, stdin="hunter2")
    assert "hunter2" not in json.dumps(collect("t", "call", "sandbox", local, None, 0).to_dict())


def test_nothing_in_a_report_is_obeyed_by_a_terminal(local: RecordedLocal) -> None:
    local.run("printf '\\033[2Jgone\\233\\a ümläut'; : \udcff")
    local.write("\x1b[31mred", "")
    local.run("printf x >&2", background=True)
    text = collect("t", "call", "sandbox", local, Snapshot({}, {}), 0).to_text()
    assert "\\x1b[2Jgone" in text
    assert "ümläut" in text
    assert all(c.isprintable() or c in "\n\t" for c in text)
    assert text.encode()


def test_a_wait_is_remembered_as_one_operation(local: RecordedLocal) -> None:
    local.write("there", "")
    wait_for_file(local, "there")
    with pytest.raises(NotReadyError):
        wait_for_file(local, "missing", timeout_seconds=0.2)
    told = [(e.operation, e.subject, (e.error or "")[:9]) for e in local.record.since(0)]
    assert told == [
        ("write", "there", ""),
        ("wait until", "there exists", ""),
        ("wait until", "missing exists", "not_ready"),
    ]


def test_cutting_says_how_much() -> None:
    assert cut("x" * 10, 10) == "x" * 10
    assert cut("a" * 50 + "b" * 50, 10) == "aaaaa\n[... 90 characters left out ...]\nbbbbb"


def test_artifacts_of_tests_with_like_names_do_not_replace_each_other(local: RecordedLocal, tmp_path: Path) -> None:
    names = ["t.py::test[a/b]", "t.py::test[a:b]", "t.py::test[" + "x" * 500 + "]"]
    paths = {save(collect(name, "call", "sandbox", local, None, 0), tmp_path / "new") for name in names}
    assert len(paths) == 3
    assert {json.loads(path.read_text())["test"] for path in paths} == set(names)


# --- what is looked at ------------------------------------------------------------------
def test_changes_of_files_are_seen(local: RecordedLocal) -> None:
    for name in ("kept", "changed", "removed", "with\nline"):
        local.write(name, "1")
    before = inspection.snapshot(local)
    local.write("changed", "2")
    local.delete("removed")
    local.write("sub/new", "3")
    after = inspection.snapshot(local)
    assert changes(before, after) == Changes(created=("sub/new",), modified=("changed",), deleted=("removed",))
    assert after.sizes["sub/new"] == 1
    assert "with\nline" in after.files


def test_without_the_programs_it_says_so() -> None:
    with RecordedLocal(env={"PATH": "/nonexistent"}) as env:
        assert "lacks the programs" in str(inspection.snapshot(env).problem)


def test_a_snapshot_that_failed_makes_no_changes_up() -> None:
    assert changes(Snapshot({}, {}, "why"), Snapshot({"a": "1"}, {"a": 1})) == Changes(problem="why")


def test_processes_are_those_of_commands_and_need_no_program() -> None:
    with RecordedLocal(env={"PATH": "/nonexistent"}) as env:
        assert collect("t", "call", "sandbox", env, None, 0).to_text().count("processes: none") == 1
        ident = env.run("{ read x; } < /dev/zero & read x < /dev/zero", background=True).unwrap().id
        with env.unrecorded():
            while sum(command.process_count for command in env.processes().unwrap().commands) < 2:  # it is to fork first
                time.sleep(0.01)
        ended = env.run("read x < /dev/zero & echo over").unwrap()
        found = collect("t", "call", "sandbox", env, None, 0)
        assert [(command.id, command.running) for command in found.processes] == [(ident, True), (ended.id, False)]
        assert found.processes_problem is None
        assert "1 process left behind" in found.to_text()
        told = json.loads(json.dumps(found.to_dict()))["processes"]
        assert [len(command["processes"]) for command in told] == [2, 1]
        count = sum(command["process_count"] for command in told)
        assert f"processes ({count}):\n  {ident} $ " in found.to_text()


def test_processes_of_a_sandbox_that_ended_are_not_known() -> None:
    env = RecordedLocal()
    env.start()
    assert env.backend.process is not None
    env.backend.process.kill()
    found = collect("t", "call", "sandbox", env, None, 0)
    assert found.gone
    assert (found.processes, found.processes_problem) == ((), found.gone)
    assert "processes" not in found.to_text().split("THE SANDBOX IS GONE")[1].partition("\n")[2]
    listed, problem = inspection.processes(env)
    assert (listed, bool(problem)) == ((), True)
    env.close()


def test_services_of_the_host_and_certificates_are_taken() -> None:
    llm = Service("llm", upstream="https://api.example.com")
    assert checked({"services": {"llm": llm}}, "x") == checked({"services": [llm]}, "x") == {"services": {"llm": llm}}
    given = checked({"ca_bundle": "company.pem"}, "x")
    assert options.anchored(given, Path("/base")) == {"ca_bundle": Path("/base/company.pem")}
    with pytest.raises(OptionsError, match=r"contradicts ca_bundle='company.pem'"):
        of_marks([pytest.mark.sandbox(local=True, ca_bundle="company.pem").mark])
    with pytest.raises(OptionsError, match="'5432', which is not a port"):
        checked({"services": {"db": {"image": "x", "port": "5432"}}}, "x")


def test_a_post_mortem_shows_hints_and_the_connections_that_were_refused(local: RecordedLocal) -> None:
    hinted = replace(local.run("true"), notices=(Notice("network_denied", "It was refused.", "Do without it."),))
    local.record.add("run", {"command": "curl"}, hinted)
    assert (
        "! network_denied: It was refused. Do without it." in collect("t", "call", "sandbox", local, None, 0).to_text()
    )
    local._network.log.add(Connection("fine.example.com", 443, "allowed"))
    for number in range(25):
        local._network.log.add(Connection(f"h{number}.example.com", 443, "denied", why="no rule opens it"))
    found = collect("t", "call", "sandbox", local, None, 0)
    text = found.to_text()
    assert "connections of this sandbox that were refused or failed (25, the last 20):" in text
    assert "  h24.example.com:443 denied: no rule opens it" in text
    assert "h4.example.com" not in text
    assert "fine.example.com" not in text
    assert len(found.to_dict()["refused"]) == 25


def test_every_option_is_described() -> None:
    for name in options.NAMES:
        with pytest.raises(OptionsError, match=f"{name}="):
            checked({name: object()}, "x")


@pytest.mark.exhaustive
def test_a_package_cache_is_given_by_its_folder_everywhere(pytester: pytest.Pytester, tmp_path: Path) -> None:
    assert checked({"cache": tmp_path}, "here")["cache"] == PackageCache(tmp_path)
    given = PackageCache(tmp_path, pypi="", npm="http://127.0.0.1:1")
    assert checked({"cache": given}, "here")["cache"] is given
    with pytest.raises(OptionsError, match="the path of a folder or a PackageCache"):
        checked({"cache": 1}, "here")
    assert put_together({"local": True}, {"cache": given}) == {"local": True}
    assert "cache=" in (reason_to_skip({"cache": given}, {"local": True}) or "")
    pytester.makepyfile("def test_a(sandbox): pass")
    result = pytester.runpytest_subprocess("--sandbox-local", f"--sandbox-cache={tmp_path}")
    result.stderr.fnmatch_lines(["*--sandbox-local and --sandbox-cache contradict each other*"])
