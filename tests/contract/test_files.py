"""Files: read, write, edit, list, search, make_dir, move, delete."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.environment.sandboxed import SandboxedEnvironment

from .backends import LIMITS, SHELL, folder_of
from .checks import done, refused, so_far

# --- write, read -----------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(env: SandboxedEnvironment, folder: str) -> None:
    path = f"{folder}/new/deep/a.txt"
    written = done(env.write(path, "é one\ntwo\n"))
    assert (written.path, written.size_bytes, written.created) == (path, 11, True)
    read = done(env.read(path))
    assert (read.path, read.content, read.size_bytes) == (path, "é one\ntwo\n", 11)
    assert (read.start_line, read.end_line, read.total_lines, read.truncated) == (1, 2, 2, False)
    assert (read.binary, read.encoding_errors) == (False, False)
    assert not done(env.write(path, "")).created
    assert done(env.read(path)).to_text() == f"[{path} is empty]"


def test_an_absolute_path_and_a_relative_one_are_the_same_file(env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder_of(env)}/{folder}/a", "x"))
    assert done(env.read(f"{folder}/../{folder}/./a")).path == f"{folder}/a"


def test_lines(env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder}/a", "".join(f"line {n}\n" for n in range(1, 11))))
    read = done(env.read(f"{folder}/a", start_line=4, end_line=5, numbered=True))
    assert read.content == "     4\tline 4\n     5\tline 5\n"
    assert (read.start_line, read.end_line, read.total_lines) == (4, 5, 10)
    refused(env.read(f"{folder}/a", start_line=12), "range_outside_file", "it has 10 lines", "Start at line 10 or before")
    refused(env.read(f"{folder}/a", start_line=3, end_line=2), "invalid_arguments", "end_line 2 is before start_line 3")
    refused(env.read(f"{folder}/a", start_line=3, offset=2), "invalid_arguments", "exclude each other")


def test_bytes(env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder}/a", "0123456789"))
    read = done(env.read(f"{folder}/a", offset=2, max_bytes=3))
    assert (read.content, read.offset, read.next_offset, read.truncated, read.size_bytes) == ("234", 2, 5, True, 10)
    assert read.to_text() == "234\n[bytes 2-5 of 10 are shown; read on with offset=5]"
    refused(env.read(f"{folder}/a", offset=11), "range_outside_file", "it has 10")


def test_a_long_file_is_cut_and_says_so(env: SandboxedEnvironment, folder: str) -> None:
    line = "x" * 99 + "\n"
    done(env.write(f"{folder}/a", line * 1000))
    read = done(env.read(f"{folder}/a"))
    assert (read.truncated, read.size_bytes, read.total_lines) == (True, 100_000, 1000)
    assert read.content == line * (LIMITS.read_bytes // 100)
    assert read.to_text().endswith("[lines 1-100 of 1000 are shown; read on with start_line=101]")
    assert done(env.read(f"{folder}/a", start_line=656)).content == line * 345


def test_a_binary_file_is_described(env: SandboxedEnvironment, folder: str) -> None:
    done(env.upload(b"\x7fELF\0\0\xff", f"{folder}/a"))
    read = done(env.read(f"{folder}/a"))
    assert (read.binary, read.content, read.size_bytes) == (True, "", 7)
    assert read.to_text() == (
        f"[{folder}/a is a binary file of 7 bytes: it is not shown as text. "
        f"Look at it with run, as in: head -c 256 {folder}/a | od -c]"
    )
    ranged = done(env.read(f"{folder}/a", offset=1, max_bytes=3))
    assert (ranged.content, ranged.encoding_errors) == ("ELF", False)
    refused(env.edit(f"{folder}/a", "ELF", "x"), "not_text", "a text file")


def test_invalid_utf8_is_replaced_and_told(env: SandboxedEnvironment, folder: str) -> None:
    done(env.upload(b"caf\xe9 \n", f"{folder}/a"))
    read = done(env.read(f"{folder}/a"))
    assert (read.content, read.encoding_errors) == ("caf\ufffd \n", True)


def test_too_much_to_write(env: SandboxedEnvironment, folder: str) -> None:
    refused(env.write(f"{folder}/a", "x" * (LIMITS.write_bytes + 1)), "file_too_large", "1.0 MiB", "append the others with run")
    done(env.write(f"{folder}/a", "x" * LIMITS.write_bytes))
    refused(env.edit(f"{folder}/a", "x" * LIMITS.write_bytes, "y" * (LIMITS.write_bytes + 1)), "file_too_large", "1.0 MiB")
    refused(env.read(f"{folder}/b"), "path_not_found", f"{folder}/b", "to see what is there")


def test_the_mode_is_kept(env: SandboxedEnvironment, folder: str, tmp_path: Any) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o751)
    done(env.upload(script, f"{folder}/run.sh"))
    done(env.write(f"{folder}/run.sh", "#!/bin/sh\nexit 0\n"))
    done(env.edit(f"{folder}/run.sh", "exit 0", "exit 1"))
    done(env.download(f"{folder}", to=tmp_path / "back"))
    assert (tmp_path / "back/run.sh").stat().st_mode & 0o777 == 0o751


# --- paths -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/etc/passwd", "../../etc/passwd", "/workspace/../etc/passwd", "/proc/self/root/etc"])
def test_outside_the_roots(env: SandboxedEnvironment, folder: str, path: str) -> None:
    done(env.write(f"{folder}/here", "x"))
    refused(env.read(path), "path_outside_roots", "outside the folders", "ook at system files with run")
    attempts = (
        env.write(path, "x"), env.list(path), env.delete(path), env.search("x", path), env.move(path, "there"),
        env.move(f"{folder}/here", path), env.make_dir(path), env.edit(path, "a", "b"), env.download(path), env.upload(b"x", path),
    )  # fmt: skip
    for envelope in attempts:
        refused(envelope, "path_outside_roots")


@pytest.mark.parametrize("path", ["a\0b", "n" * 256, "é" * 128])
def test_no_file_can_be_called_that(env: SandboxedEnvironment, path: str) -> None:
    refused(env.read(path), "path_invalid", "is not a usable path")
    refused(env.write(path, "x"), "path_invalid", "is not a usable path")


LEASE = """import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDWR)
while True:
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        break
    except BlockingIOError:  # somebody has it open: the guest does, until it has written it out
        time.sleep(0.01)
print("kept", flush=True)
time.sleep(60)
"""


@pytest.mark.needs(SHELL, "python")
def test_a_file_under_a_lease_names_its_holder(env: SandboxedEnvironment, folder: str) -> None:
    """It was answered with too_many_processes: "No further process can be started"."""
    done(env.write(f"{folder}/a", "x"))
    holder = done(env.run(argv=["python3", "-c", LEASE, f"{folder_of(env)}/{folder}/a"], background=True)).id
    done(env.wait_for(id=holder, log="kept"))
    for answer in (env.read(f"{folder}/a"), env.edit(f"{folder}/a", "x", "y"), env.write(f"{folder}/a", "y")):
        refused(answer, "io_error", "(python3) holds a lease on it", "the kernel takes the lease away")
    done(env.kill(holder))
    assert done(env.read(f"{folder}/a")).content == "x"


def test_text_has_to_be_unicode(env: SandboxedEnvironment, folder: str) -> None:
    refused(env.read("\ud800"), "invalid_arguments", "path")
    refused(env.write(f"{folder}/a", "\ud800"), "invalid_arguments", "content")
    assert done(env.list(folder)).entries == ()


def test_the_root_of_all(env: SandboxedEnvironment) -> None:
    refused(env.read("/"), "path_outside_roots")
    refused(env.list("/"), "path_outside_roots")
    for envelope in (env.write("/", "x"), env.delete("/", recursive=True), env.upload(b"x", "/")):
        assert not envelope.ok


def test_folders_are_no_files_and_files_no_folders(env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder}/file", "x"))
    refused(env.read(folder), "is_a_directory", folder, "List it")
    refused(env.write(folder, "x"), "is_a_directory", folder)
    refused(env.edit(folder, "x", "y"), "is_a_directory", folder)
    refused(env.read(f"{folder}/file/x"), "not_a_directory")
    refused(env.write(f"{folder}/file/x", "x"), "not_a_directory")
    refused(env.list(f"{folder}/file"), "not_a_directory", "Read it")
    refused(env.make_dir(f"{folder}/file"), "path_exists", "exists already")
    refused(env.make_dir(f"{folder}/file/x"), "not_a_directory")
    refused(env.write(f"{folder}/..", "x"), "path_invalid")


@pytest.mark.needs(SHELL)
def test_links(env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder}/real", "inside"))
    done(env.run("ln -s real in && ln -s /etc/hostname out && ln -s loop loop && mkfifo fifo", cwd=folder))
    assert done(env.read(f"{folder}/in")).content == "inside"
    refused(env.read(f"{folder}/out"), "path_outside_roots")
    refused(env.write(f"{folder}/out", "x"), "path_outside_roots")
    for circle in (env.read(f"{folder}/loop"), env.write(f"{folder}/loop", "x")):
        refused(circle, "path_invalid", "in a circle: it is a link to 'loop'", "Delete the link")
    refused(env.read(f"{folder}/fifo"), "not_a_regular_file", "fifo")
    refused(env.write(f"{folder}/fifo", "x"), "not_a_regular_file", "fifo")
    entries = {entry.path: entry for entry in done(env.list(folder)).entries}
    assert (entries[f"{folder}/out"].type, entries[f"{folder}/out"].target) == ("symlink", "/etc/hostname")
    assert entries[f"{folder}/fifo"].type == "other"
    done(env.write(f"{folder}/in", "changed"))
    assert done(env.read(f"{folder}/real")).content == "changed"
    assert done(env.delete(f"{folder}/out")).entries_deleted == 1


def test_links_of_an_uploaded_tree(env: SandboxedEnvironment, folder: str, tmp_path: Any) -> None:
    (tmp_path / "real").write_text("inside")
    (tmp_path / "in").symlink_to("real")
    (tmp_path / "out").symlink_to("/etc/hostname")
    done(env.upload(tmp_path, f"{folder}/tree"))
    assert done(env.read(f"{folder}/tree/in")).content == "inside"
    refused(env.read(f"{folder}/tree/out"), "path_outside_roots")
    refused(env.write(f"{folder}/tree/out", "x"), "path_outside_roots")


# --- edit ------------------------------------------------------------------------------------------------------------------


def test_edit(env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder}/a", "one\r\ntwo\r\nthree\r\n"))
    edited = done(env.edit(f"{folder}/a", "two\n", "2\n2b\n"))
    assert (edited.replacements, edited.first_line, edited.size_bytes) == (1, 2, 19)
    assert edited.to_text().startswith(f"--- {folder}/a\n+++ {folder}/a\n@@ -1,3 +1,4 @@\n")
    assert done(env.download(f"{folder}/a")).content == b"one\r\n2\r\n2b\r\nthree\r\n"


def test_edit_that_matches_nothing_shows_what_is_near(env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder}/a", "def alpha(x):\n    return x + 1\n"))
    failure = refused(env.edit(f"{folder}/a", "def alpha(y):", "x"), "text_not_found", "The nearest lines are shown")
    assert failure.next_tool == "read"
    nearest = so_far(failure).candidates[0]
    assert (nearest.start_line, nearest.text) == (1, "def alpha(x):")
    assert "def alpha(x):" in failure.to_text()
    far = refused(env.edit(f"{folder}/a", "%%%%", "x"), "text_not_found")
    assert so_far(far).candidates == ()
    assert "nearest" not in far.error


def test_edit_that_matches_several_places_shows_them(env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder}/a", "x = 1\ny = 2\nx = 1\n"))
    failure = refused(env.edit(f"{folder}/a", "x = 1", "x = 3"), "text_not_unique", "occurs 2 times", "replace_all=true")
    assert [c.start_line for c in so_far(failure).candidates] == [1, 3]
    assert done(env.edit(f"{folder}/a", "x = 1", "x = 3", replace_all=True)).replacements == 2
    refused(env.edit(f"{folder}/a", "x = 3", "x = 3"), "invalid_arguments", "are the same")
    refused(env.edit(f"{folder}/none", "a", "b"), "path_not_found")


# --- list, search ----------------------------------------------------------------------------------------------------------


def test_list(env: SandboxedEnvironment, folder: str) -> None:
    for name in ("b/deep/c", "b/a", "z", ".hidden/x"):
        done(env.write(f"{folder}/{name}", "123"))
    listed = done(env.list(folder))
    assert [entry.path.removeprefix(folder) for entry in listed.entries] == ["/.hidden", "/b", "/z"]
    assert [(entry.type, entry.size_bytes) for entry in listed.entries] == [
        ("directory", None), ("directory", None), ("file", 3),
    ]  # fmt: skip
    assert (listed.total_entries, listed.truncated, listed.path) == (3, False, folder)
    deep = done(env.list(folder, depth=3, hidden=False))
    names = [entry.path.removeprefix(folder) for entry in deep.entries]
    assert names == ["/b", "/b/a", "/b/deep", "/b/deep/c", "/z"]
    cut = done(env.list(folder, depth=3, max_entries=2))
    assert (len(cut.entries), cut.truncated) == (2, True)
    assert cut.to_text().endswith("[the first 2 of 7 entries are shown: list one folder of it, or use a lower depth]")
    done(env.make_dir(f"{folder}/empty"))
    assert done(env.list(f"{folder}/empty")).to_text() == f"[{folder}/empty is empty]"
    refused(env.list(f"{folder}/none"), "path_not_found")


def test_search(env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder}/a.py", "import os\ndef one():\n    pass\ndef two():\n"))
    done(env.write(f"{folder}/sub/b.txt", "DEF\n"))
    found = done(env.search(r"def \w+", folder, context_lines=1))
    assert [(m.path, m.line, m.text) for m in found.matches] == [
        (f"{folder}/a.py", 2, "def one():"), (f"{folder}/a.py", 4, "def two():"),
    ]  # fmt: skip
    assert (found.matches[0].before, found.matches[0].after) == (("import os",), ("    pass",))
    assert (found.files_with_matches, found.truncated) == (1, False)
    assert len(done(env.search("def", folder, ignore_case=True)).matches) == 3
    assert len(done(env.search("def", folder, ignore_case=True, glob="*.txt")).matches) == 1
    assert done(env.search("one()", folder, literal=True)).matches[0].line == 2
    cut = done(env.search("def", folder, max_matches=1))
    assert (len(cut.matches), cut.truncated) == (1, True)
    assert done(env.search("nowhere", folder)).to_text() == "[no match]"
    assert len(done(env.search("def", f"{folder}/a.py")).matches) == 2
    failure = refused(env.search("(", folder), "invalid_pattern", "'('", "literal=true")
    assert failure.next_tool == "search"
    refused(env.search("x", f"{folder}/none"), "path_not_found")


# --- make_dir, move, delete ------------------------------------------------------------------------------------------------


def test_make_dir(env: SandboxedEnvironment, folder: str) -> None:
    assert done(env.make_dir(f"{folder}/a/b")).created
    assert not done(env.make_dir(f"{folder}/a/b")).created
    assert [entry.type for entry in done(env.list(f"{folder}/a")).entries] == ["directory"]


def test_move(env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder}/a/x", "1"))
    done(env.write(f"{folder}/b", "2"))
    moved = done(env.move(f"{folder}/a", f"{folder}/c"))
    assert (moved.source, moved.target) == (f"{folder}/a", f"{folder}/c")
    assert done(env.read(f"{folder}/c/x")).content == "1"
    refused(env.move(f"{folder}/b", f"{folder}/c/x"), "path_exists", "overwrite=true")
    done(env.move(f"{folder}/b", f"{folder}/c/x", overwrite=True))
    assert done(env.read(f"{folder}/c/x")).content == "2"
    refused(env.move(f"{folder}/none", f"{folder}/d"), "path_not_found")
    refused(env.move(f"{folder}/c", f"{folder}/c/inside"), "path_invalid", "lies inside")
    refused(env.move(f"{folder}/c/x", f"{folder}/c", overwrite=True), "is_a_directory")
    refused(env.move(f"{folder}/c/x", f"{folder}/none/x"), "path_not_found")


def test_delete(env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder}/a/x", "1"))
    done(env.write(f"{folder}/a/y/z", "1"))
    failure = refused(env.delete(f"{folder}/a"), "directory_not_empty", "recursive=true")
    assert failure.next_tool == "delete"
    assert done(env.delete(f"{folder}/a", recursive=True)).entries_deleted == 4
    refused(env.delete(f"{folder}/a"), "path_not_found")
    done(env.make_dir(f"{folder}/empty"))
    assert done(env.delete(f"{folder}/empty")).entries_deleted == 1
    refused(env.delete(".", recursive=True), "path_invalid")


# --- arguments -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "args", "named"),
    [
        ("read", {}, "read needs path ("),
        ("read", {"path": "a", "start_line": 0}, "start_line"),
        ("read", {"path": ["a"]}, "path"),
        ("write", {"path": "a"}, "content"),
        ("list", {"depth": 99}, "depth"),
        ("search", {"pattern": ""}, "pattern"),
        ("run", {"command": "true", "timeout_seconds": -1}, "timeout_seconds"),
        ("run", {"command": "true", "colour": "red"}, "colour"),
        ("run", {}, "give either command or argv"),
        ("run", {"command": "true", "argv": ["true"]}, "give either command or argv"),
        ("run", {"command": "true", "timeout_seconds": 3601}, "at most 3600"),
        ("run", {"command": "true", "keep_output_bytes": 2 << 20}, "keep_output_bytes"),
        ("logs", {"id": "c1", "max_bytes": 0}, "max_bytes"),
    ],
)
def test_wrong_arguments(env: SandboxedEnvironment, operation: str, args: dict[str, Any], named: str) -> None:
    failure = env.execute(operation, args)
    assert not failure.ok
    assert (failure.code, failure.next_tool, failure.effects) == ("invalid_arguments", operation, "none")
    assert named in failure.error


def test_unknown_operations(env: SandboxedEnvironment) -> None:
    refused(env.execute("format_disk", {}), "unknown_tool", "'format_disk'", "Use one of: read,")
    refused(env.execute("upload", {"path": "x"}), "operation_not_supported", "env.upload")


@pytest.mark.needs(SHELL, "python")
def test_an_answer_beyond_all_measure_is_the_failure_of_its_request_alone(env: SandboxedEnvironment, folder: str) -> None:
    program = (
        "import os\nfor i in range(13):\n os.mkdir(chr(1) * 250); os.chdir(chr(1) * 250)\n"
        "for i in range(250):\n open(f'f{i}', 'w').close()"
    )
    done(env.run(argv=["python3", "-c", program], cwd=folder))
    refused(env.list(folder, depth=20, max_entries=1000), "response_too_large", "the limit is", "Ask for less", effects="none")
    assert done(env.run("echo still here")).output == "still here\n"
    assert len(done(env.list(folder, depth=20, max_entries=3)).entries) == 3


def test_a_tilde_is_the_home(env: SandboxedEnvironment, folder: str) -> None:
    """A13: write of ~/notes.txt made a folder "~" in the repository, and said nothing."""
    written = done(env.write(f"~/{folder}/notes.txt", "one\n"))
    assert written.path.startswith("/")
    assert not written.path.startswith("/workspace")
    assert done(env.read(f"~/{folder}/notes.txt")).path == done(env.read(written.path)).path
    done(env.edit(f"~/{folder}/notes.txt", "one", "two"))
    assert [e.path for e in done(env.list(f"~/{folder}")).entries] == [written.path]
    assert done(env.search("two", f"~/{folder}")).matches[0].path == written.path
    done(env.wait_for(file=f"~/{folder}/notes.txt", timeout_seconds=5))
    done(env.move(f"~/{folder}/notes.txt", f"{folder}/here.txt"))
    done(env.make_dir(f"~/{folder}/made"))
    done(env.delete(f"~/{folder}", recursive=True))
    assert "~" not in {entry.path for entry in done(env.list(".")).entries}


@pytest.mark.needs("shell")
def test_a_command_starts_in_the_home_by_a_tilde(env: SandboxedEnvironment) -> None:
    assert done(env.run('test "$PWD" = "$HOME"', cwd="~")).exit_code == 0


@pytest.mark.needs("shell", "isolated")
def test_a_search_says_that_a_folder_could_not_be_read(env: SandboxedEnvironment, folder: str) -> None:
    done(env.run(f"mkdir {folder}/closed; echo needle > {folder}/closed/a; chmod 000 {folder}/closed"))
    try:
        found = done(env.search("needle", folder))
        assert (found.matches, found.unreadable) == ((), True)
        assert "could not be read" in found.to_text()
    finally:
        done(env.run(f"chmod 755 {folder}/closed"))


@pytest.mark.needs("shell", "isolated")
def test_a_folder_without_rights_is_explained(env: SandboxedEnvironment, folder: str) -> None:
    """A3, as a model meets it: the advice was to choose a path in the workspace."""
    done(env.run(f"mkdir {folder}/docs; echo a > {folder}/docs/a.md; chmod 555 {folder}/docs"))
    words = (f"the folder '{folder}/docs' has mode 555 and belongs to you", f"chmod u+wx {folder}/docs")
    refused(env.write(f"{folder}/docs/new.md", "x"), "permission_denied", *words)
    refused(env.edit(f"{folder}/docs/a.md", "a", "b"), "permission_denied", *words)
    refused(env.delete(f"{folder}/docs", recursive=True), "permission_denied", "this folder has mode 555")
    refused(env.write("/run/gamebox/x", "x"), "permission_denied", "'/run/gamebox' has mode 755 and belongs to root")
    done(env.run(f"chmod 755 {folder}/docs"))
    done(env.write(f"{folder}/docs/new.md", "x"))
