"""The command line without an engine: help, what it imports, bad input, exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent.cli import app as app_module
from agent.cli.app import main
from agent.cli.help import _first_sentence
from agent.record.call_summary import summarize_args
from sandbox.cli.errors import envelope_for_cli
from sandbox.cli.sandbox_options import size_of
from sandbox.docker.environment import DockerEnvironment
from sandbox.envelope import Notice, Success
from sandbox.errors import ErrorCode, SandboxError
from sandbox.messages.faults import word_fault
from sandbox.network.policy import Network
from sandbox.readers import attach, hint_for, limit, opened, phrased
from sandbox.text.invisible import visible
from tests.contract.checks import with_more_time
from tests.programs import run_gamebox
from tests.scripted_runs import coding


def gamebox(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_gamebox(*args, env={**os.environ, "COLUMNS": "200", **env})


@pytest.mark.parametrize("name", [name for name, lazy in app_module._COMMANDS.items() if lazy is not None])
def test_a_command_that_is_loaded_later_has_the_sentence_of_its_help(name: str) -> None:
    lazy = app_module._COMMANDS[name]
    assert lazy is not None
    assert _first_sentence(lazy.load(name).help) == lazy.help


def test_help_loads_no_command() -> None:
    program = (
        "import sys; from agent.cli.app import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "assert not {m for m in sys.modules if m.startswith(('sandbox.docker', 'agent.cli.agent', 'pydantic'))}"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_help_names_the_commands() -> None:
    done = gamebox("--help")
    assert done.returncode == 0
    for name in ("run", "agent", "demo", "check", "setup", "version"):
        assert f"\n  {name} " in done.stdout
    assert "gamebox agent" in gamebox("agent", "--help").stdout
    shown = gamebox("run", "--help").stdout
    for example in ("python3 -c", "--profile root --allow example.com", "--disk 20g --runtime runsc"):
        assert example in shown
    assert "gamebox doctor --runtime runsc" in gamebox("doctor", "--help").stdout


COMMANDS = (
    *("run", "exec", "shell", "cp", "logs", "ls", "image", "rm", "agent", "batch", "serve", "setups"),
    *("demo", "check", "setup", "doctor", "version", "hub", "mcp", "new", "runs"),
)


def commands_of(*group: str) -> list[str]:
    """Return the commands that the help of ``gamebox``, or of a group of it, lists."""
    shown = gamebox(*group, "--help").stdout
    listed = shown[shown.index("Commands:") :].splitlines()[1:]
    return [line.split()[0] for line in listed if re.match("  [a-z]", line)]


def test_the_help_of_all_commands_is_looked_at() -> None:
    assert set(commands_of()) == set(COMMANDS)


HELP = """
import contextlib, io, sys
from agent.cli import app as app_module
from agent.cli.app import main
from agent.cli.help import _first_sentence

def shown(*args):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main(list(args))
    return out.getvalue()
"""


def test_help_imports_nothing_heavy() -> None:
    groups = {name: commands_of(name) for name in ("image", "setups", "runs", "hub")}
    assert {"build", "import"} < set(groups["image"])
    lines = [(), *((name,) for name in COMMANDS), *((name, each) for name, found in groups.items() for each in found)]
    code = HELP + (
        f"for args in {lines!r}:\n"
        "    for flag in ('--help', '-h'):\n"
        "        assert shown(*args, flag).startswith('Usage: -c ' + ' '.join(args)), args\n"
        "print(sorted({m.split('.')[0] for m in sys.modules}"
        " & {'rich', 'pydantic', 'litellm', 'docker', 'jsonschema', 'tenacity', 'requests', 'asyncio', 'email'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("arguments", "is_the_command"), [("", True), ("['version']", False)])
def test_only_a_process_of_the_command_looks_for_no_garbage_at_its_end(arguments: str, is_the_command: bool) -> None:
    code = (
        "import atexit, gc, sys; sys.argv = ['gamebox', 'version']\n"
        "before = gc.get_freeze_count()  # Python 3.12 starts with some\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > before, gc.get_threshold()[0] > 10_000))\n"
        f"from agent.cli.app import main; main({arguments})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == f"{is_the_command} {is_the_command}"


@pytest.mark.parametrize(("arguments", "status"), [(["version"], 0), (["run", "--nonsense"], 125)])
def test_a_process_of_the_command_leaves_with_its_status_and_without_taking_itself_apart(
    arguments: list[str], status: int
) -> None:
    code = (
        "import sys\n"
        "class Part:\n"
        "    def __del__(self, write=sys.stderr.write): write('taken apart')\n"
        "sys.part = Part()\n"
        f"sys.argv = {['gamebox', *arguments]!r}\n"
        "from agent.cli.app import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "taken apart" in done.stderr) == (status, False), done.stderr
    assert done.stdout.startswith("gamebox " if status == 0 else "")


def test_help_is_the_same_however_it_is_asked_for() -> None:
    code = HELP + (
        f"for name in {COMMANDS!r}:\n"
        "    assert shown(name, '--help') == shown('--debug', name, '--help'), name\n"
        "print('the same')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "the same"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/a.txt").write_text("one\n")
    return tmp_path / "repo"


def script(tmp_path: Path, *steps: object) -> str:
    file = tmp_path / "script.json"
    file.write_text(json.dumps(steps))
    return str(file)


EDIT = {"tool": "edit", "args": {"path": "a.txt", "old_text": "one", "new_text": "two"}}
FINISH = {"tool": "finish", "args": {"summary": "changed\x1b[31m"}}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("run", "--network", "host", "--", "true"), "none, open or bridge"),
        (("run", "--network", "bridge", "--allow", "example.com", "--", "true"), "Leave one of them out"),
        (("run", "--allow", "https://example.com/x", "--", "true"), "Write 'example.com' instead"),
        (("run", "--local", "--allow", "example.com", "--", "true"), "has no effect with --local"),
        (("run", "--local", "--network", "open", "--", "true"), "--network open has no effect with --local"),
        (("run", "--in", "x", "--network", "host", "--", "true"), "none, open or bridge"),
        (("run", "--local", "--cache", "packages", "--", "true"), "--cache packages has no effect with --local"),
        (("run", "--network", "bridge", "--cache", "packages", "--", "true"), "Leave one of them out"),
        (("run", "--memory", "lots", "--", "true"), "512m"),
        (("run", "--memory", "0m", "--", "true"), "memory_bytes=0"),
        (("run", "--memory", "2", "--", "true"), "Did you mean 2g?"),
        (("run", "--env", "BAD NAME=3", "--", "true"), "'BAD NAME=3'"),
        (("cp", "a.txt", "b.txt"), "Both are paths on this host"),
        (("cp", "work:a.txt", "work:b.txt"), "Both are in a sandbox"),
        (("cp", "/nonexistent", "work:b.txt"), "'/nonexistent' does not exist"),
        (("logs", "work", "--follow", "--tail", "3"), "--follow cannot be combined with --tail"),
        (("shell",), "needs a terminal"),
        (("run", "--cpus", "-1", "--", "true"), "cpus=-1"),
        (("run", "--memory", "-5m", "--", "true"), "'-5m'"),
        (("run", "--timeout", "0", "--", "true"), "--timeout 0"),
        (("run", "--timeout", "inf", "--", "true"), "--timeout inf"),
        (("run", "--timeout", "nan", "--", "true"), "--timeout nan"),
        (("run", "--image", "", "--", "true"), "image"),
        (("run", "--profile", "admin", "--", "true"), "'admin'"),
        (("run", "--disk", "much", "--", "true"), "'much' is not a valid size of a disk"),
        (("run", "--local", "--disk", "1g", "--", "true"), "--disk 1g has no effect with --local"),
        (("run", "--local", "--runtime", "runsc", "--", "true"), "--runtime runsc"),
        (("run", "--local", "--profile", "root", "--", "true"), "--profile root"),
        (("run", "--take-over", "--", "true"), "has no effect without --in"),
        (("run", "--keep-seconds", "0", "--", "true"), "--keep-seconds 0.0"),
        (("run", "--env", "=x", "--", "true"), "NAME=VALUE"),
        (("run", "--env", "GAMEBOX_NOT_SET", "--", "true"), "not set here"),
        (("run", "--local", "--workspace", "/nonexistent", "--", "true"), "/nonexistent"),
        (("run",), "Missing argument"),
        (("agent", "task", "--agent", "coding", "--repo", "REPO"), "No model was named"),
        (
            ("agent", "task", "--agent", "coding", "--repo", "REPO", "--model", "a/b", "--script", "x"),
            "either --model or --script",
        ),
        (("agent", " ", "--agent", "coding", "--repo", "REPO", "--script", "SCRIPT"), "task is empty"),
        (("agent", "t", "--agent", "coding", "--repo", "/nonexistent", "--script", "SCRIPT"), "does not exist"),
        (("agent", "t", "--agent", "coding", "--repo", "SCRIPT", "--script", "SCRIPT"), "is a file"),
        (("agent", "t", "--agent", "coding", "--repo", "REPO", "--script", "/nonexistent"), "cannot be read"),
        (
            ("agent", "t", "--agent", "coding", "--repo", "REPO", "--script", "SCRIPT", "--max-iterations", "0"),
            "max_iterations",
        ),
        (("agent", "t", "--agent", "coding", "--repo", "REPO", "--script", "SCRIPT", "--memory", "lots"), "512m"),
        (("agent", "t", "--agent", "coding", "--repo", "REPO", "--script", "SCRIPT", "--cpus", "0"), "cpus=0"),
        (
            ("agent", "t", "--agent", "coding", "--repo", "REPO", "--script", "SCRIPT", "--network", "host"),
            "none, open or bridge",
        ),
        (
            ("agent", "t", "--agent", "coding", "--repo", "REPO", "--script", "SCRIPT", "--local", "--network", "open"),
            "--network open has no effect",
        ),
        (
            ("agent", "t", "--agent", "coding", "--repo", "REPO", "--script", "SCRIPT", "--language", "xml"),
            "function_calling, json",
        ),
        (
            ("agent", "t", "--agent", "coding", "--repo", "REPO", "--model", "anthropic/claude-sonnet-4-5"),
            "ANTHROPIC_API_KEY",
        ),
        (("agent", "t", "--agent", "coding", "--repo", "REPO", "--model", "nosuch-thing"), "provider/name"),
        (
            ("agent", "t", "--agent", "coding", "--repo", "REPO", "--model", "openai/no-such-model", "--max-cost", "1"),
            "--max-tokens",
        ),
        (("check", "nowhere"), "module:attribute"),
        (("check", "no_such_module:agent"), "no_such_module"),
        (("check", "/nonexistent.py:agent"), "no file"),
    ],
)
def test_bad_input_is_one_clear_error(repo: Path, tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    file = script(tmp_path, FINISH)
    names = {"REPO": str(repo), "SCRIPT": file}
    done = gamebox(*(names.get(a, a) for a in args), ANTHROPIC_API_KEY="", OPENAI_API_KEY="sk-test")
    assert done.returncode == (125 if args[0] in ("run", "exec", "shell") else 2), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_an_engine_that_is_down() -> None:
    done = gamebox("run", "--", "true", DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert done.returncode == 125  # 2 could be the command's own
    assert "engine_unavailable" in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -TERM $$"), 143),
        (("no-such-program",), 127),
        (("/etc/hostname",), 126),
    ],
)
def test_run_exits_as_the_command_did(command: tuple[str, ...], code: int) -> None:
    assert gamebox("run", "--local", "--", *command).returncode == code


def test_run_keeps_the_streams_apart_and_says_a_timeout() -> None:
    done = gamebox("run", "--local", "-e", "WORD=hi", "--", "sh", "-c", "echo $WORD; echo no >&2")
    assert (done.stdout, done.returncode) == ("hi\n", 0)
    assert "no\n" in done.stderr
    done = with_more_time(
        lambda seconds: gamebox("run", "--local", "--timeout", f"{seconds:g}", "--", "sh", "-c", "echo first; sleep 60"),
        lambda done: bool(done.stdout), 0.5,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("first\n", 124)
    assert re.search(r"hint: Give a --timeout above (0\.5|4|16)\.\n", done.stderr)
    done = gamebox("run", "--local", "--", "no-such-program")
    assert "sh -c 'TEXT'" in done.stderr
    told = json.loads(gamebox("run", "--local", "--json", "--timeout", "0.5", "--", "sleep", "60").stdout)
    assert told["hint"] == "Give a --timeout above 0.5."


def test_a_command_in_the_queue_is_told_in_words_of_the_command_line() -> None:
    words = word_fault(ErrorCode.timeout, {"queued": True, "id": "c1", "session": "default", "seconds": 2.0}, "run")
    assert hint_for("cli", words.hint) == "Wait until that has ended, or give a longer --timeout."


def test_advice_of_notices_is_in_words_of_the_command_line() -> None:
    advice = {
        "--allow example.com": phrased("Open it with {rule}.", rule=opened("example.com")),
        "--allow '*.example.org:443' --allow 10.0.0.1": phrased("{rule}", rule=opened("*.example.org:443", "10.0.0.1")),
        "Raise --memory.": phrased("Raise {it}.", it=limit("memory_bytes")),
        "the limit network_bytes, which has no option here": phrased("{it}", it=limit("network_bytes")),
        "`gamebox run --in box -- COMMAND`": phrased("{it}", it=attach("box")),
    }
    for told, hint in advice.items():
        (notice,) = envelope_for_cli(Success(None, notices=(Notice("network_denied", "refused", hint),))).notices
        assert told in notice.hint


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ((), None),
        (("--network", "none"), Network.none()),
        (("--network", "open"), Network.open()),
        (("--allow", "example.com"), Network.allow("example.com")),
    ],
)
def test_a_kept_sandbox_is_given_its_network_again(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], policy: Network | None
) -> None:
    given: list[Network | None] = []

    def attach(_: str, *, network: Network | None, **__: object) -> None:
        given.append(network)
        raise SandboxError(ErrorCode.sandbox_not_found, "There is none.", "")

    monkeypatch.setattr(DockerEnvironment, "attach", attach)
    with pytest.raises(SystemExit):
        main(["run", "--in", "w", *options, "--", "true"])
    assert given == [policy]


def test_run_as_json() -> None:
    done = gamebox("run", "--local", "--json", "--", "sh", "-c", "echo hi; exit 3")
    envelope = json.loads(done.stdout)
    assert (done.returncode, envelope["tool_executed"], envelope["result"]["output"]) == (3, True, "hi\n")


def test_agent_ends_with_a_diff_that_can_be_applied(repo: Path, tmp_path: Path) -> None:
    done = gamebox(*coding(repo, script(tmp_path, EDIT, FINISH), "change it"))
    assert done.returncode == 0, done.stderr
    assert (repo / "a.txt").read_text() == "one\n"
    assert "→ edit a.txt" in done.stderr
    assert "finished" in done.stderr
    assert "into the sandbox: 1 file of" in done.stderr
    assert "1 file changed" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    applied = subprocess.run(["git", "apply", "-"], cwd=repo, input=done.stdout, text=True, check=False)
    assert applied.returncode == 0
    assert (repo / "a.txt").read_text() == "two\n"


@pytest.mark.parametrize("language", ["function_calling", "json"])
def test_agent_applies_and_tells_as_json(repo: Path, tmp_path: Path, language: str) -> None:
    steps = script(tmp_path, "no action", EDIT, FINISH)
    done = gamebox(*coding(repo, steps), "--apply", "--json", "--language", language)
    told = json.loads(done.stdout)
    assert (done.returncode, told["status"], told["applied"]) == (0, "finished", True)
    assert told["changes"] == [{"path": "a.txt", "kind": "modified"}]
    assert (repo / "a.txt").read_text() == "two\n"


def test_an_agent_that_does_not_finish_applies_nothing(repo: Path, tmp_path: Path) -> None:
    steps = script(tmp_path, EDIT, EDIT, EDIT)
    done = gamebox(*coding(repo, steps), "--apply", "--max-iterations", "1")
    assert done.returncode == 1
    assert "max_iterations" in done.stderr
    assert "+two" in done.stdout
    assert (repo / "a.txt").read_text() == "one\n"


def test_apply_refused_is_told_and_fails(repo: Path, tmp_path: Path) -> None:
    touch = {"tool": "run", "args": {"command": f"echo mine > {repo}/a.txt"}}
    done = gamebox(*coding(repo, script(tmp_path, EDIT, touch, FINISH)), "--apply")
    assert done.returncode == 1
    assert "apply_refused" in done.stderr
    assert (repo / "a.txt").read_text() == "mine\n"


def test_check_looks_an_agent_over(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from agent import *\nfrom agent.tools import finish_action\n"
        "def make():\n    return Agent([Goal('g')], JsonLanguage(), ActionRegistry([finish_action()]), print, Environment())\n"
        "broken = Agent([Goal('g')], JsonLanguage(), ActionRegistry(), print, Environment())\n"
    )
    good, bad = gamebox("check", f"{file}:make"), gamebox("check", f"{file}:broken")
    assert (good.returncode, bad.returncode) == (0, 1)
    assert "pass  faults" in good.stdout
    assert "warn  isolation" in good.stdout
    assert "fail  actions: there are none" in bad.stdout


def test_version() -> None:
    assert gamebox("version").stdout.startswith("gamebox ")
    assert gamebox("--version").stdout == gamebox("version").stdout


@pytest.mark.parametrize("group", ["hub", "new", "runs"])
def test_a_group_without_a_command_shows_its_help(group: str) -> None:
    done = gamebox(group)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == gamebox(group, "--help").stdout


def test_no_word_of_help_is_broken_in_60_columns() -> None:
    shown = gamebox("agent", "--help", COLUMNS="60").stdout.split("Examples:")[0]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in shown
    assert max(map(len, shown.splitlines())) <= 60
    wide = gamebox("agent", "--help", COLUMNS="80").stdout
    assert "  --fallback MODEL                Model to ask" in wide


def test_examples_in_help_are_never_wrapped_and_the_help_fits_60_columns() -> None:
    shown = gamebox("run", "--help", COLUMNS="60").stdout
    options, examples = shown.split("Examples:")
    assert all(len(line) <= 60 for line in options.splitlines())
    assert "  gamebox run --disk 20g --runtime runsc -- ./build.sh\n" in examples
    assert "--service-header llm:X-Api-Key=API_KEY \\\n" in examples
    whole = gamebox("agent", "--help", COLUMNS="60").stdout
    assert '  gamebox agent "what is 17 * 23?" --agent math --model provider/name\n' in whole
    assert "Usage: -c agent [OPTIONS] TASK\n" in whole
    assert "<" not in options


def test_completion_knows_commands_and_options() -> None:
    def completed(words: str) -> set[str]:
        env = {"_GAMEBOX_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
        program = str(Path(sys.prefix) / "bin/gamebox")
        done = subprocess.run([program], capture_output=True, text=True, env={**os.environ, **env}, timeout=60, check=False)
        return set(done.stdout.split())

    assert {"exec", "shell", "run"} <= completed("gamebox ")
    assert {"--workspace", "--disk"} <= completed("gamebox run --")


# --- the user's own defaults ----------------------------------------------------------------------------------------
@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config/gamebox").mkdir(parents=True)
    return tmp_path / "config/gamebox/config.toml"


def test_options_that_are_not_given_come_from_the_users_config(config: Path, repo: Path, tmp_path: Path) -> None:
    config.write_text('[run]\nlocal = true\ntimeout = 0.5\n[hub.ls]\njson = true\n')
    home = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert gamebox("run", "--", "sleep", "60", **home).returncode == 124
    assert gamebox("run", "--timeout", "20", "--", "sleep", "0.6", **home).returncode == 0
    assert json.loads(gamebox("hub", "ls", **home).stdout)["agents"]


def test_a_command_with_commands_has_defaults_of_its_own_and_of_these(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "none"
    config.write_text(f'[serve]\ndata = "{folder}"\nport = 1\n[serve.backup]\nforce = true\n')
    done = gamebox("serve", "backup", str(tmp_path / "b.tar"), XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert (done.returncode, f"There is no store {folder}/service.db." in done.stderr) == (2, True), done.stderr
    config.write_text("[serve]\nprot = 1\n")
    assert "prot" in gamebox("serve", "backup", "x", XDG_CONFIG_HOME=str(tmp_path / "config")).stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[run]\nnonsense = 1\n", "[run] has no option 'nonsense'"),
        ("[nonsense]\nx = 1\n", "[nonsense] does not name a command"),
        ("run = 1\n", "[run] does not name a command"),
        ("not toml", "cannot be read"),
    ],
)
def test_a_config_that_is_wrong_is_one_clear_error(config: Path, tmp_path: Path, text: str, said: str) -> None:
    config.write_text(text)
    done = gamebox("hub", "ls", XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


@pytest.mark.parametrize("kind", ["group", "others", "large", "pipe", "folder", "user"])
def test_attack_13_a_config_that_others_can_write_is_not_read(config: Path, tmp_path: Path, kind: str) -> None:
    """Nor one that is no file, which could be waited for, nor one without a bound."""
    if kind in ("pipe", "folder"):
        os.mkfifo(config, 0o600) if kind == "pipe" else config.mkdir()
    else:
        config.write_text("[hub.ls]\njson = true\n" + ("#" * (1 << 20) if kind == "large" else ""))
        config.chmod({"group": 0o664, "others": 0o646}.get(kind, 0o600))
    if kind == "user":
        os.chown(config, 1234, -1)
    done = gamebox("hub", "ls", XDG_CONFIG_HOME=str(tmp_path / "config"))
    said = {"large": "more than 1 MiB", "pipe": "not a regular file", "folder": "not a regular file"}.get(kind, "is not read")
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_model_of_the_environment_is_a_default(repo: Path, tmp_path: Path) -> None:
    model = {"GAMEBOX_MODEL": "openai/no-such-model", "OPENAI_API_KEY": "sk-test"}
    given = ("agent", "t", "--agent", "coding", "--repo", str(repo))
    assert "price of openai/no-such-model" in gamebox(*given, "--max-cost", "1", **model).stderr
    done = gamebox(*coding(repo, script(tmp_path, FINISH)), **model)  # a script needs none
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "size"), [("1048576", 1 << 20), ("512m", 512 << 20), ("2g", 2 << 30), ("1.5GiB", 3 << 29), ("4KB", 4096)]
)
def test_sizes(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "m", "-1m", "1x", "1 2"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(SandboxError):
        size_of(text)


def test_text_of_an_agent_cannot_steer_the_terminal() -> None:
    hostile = "a\x1b]0;title\x07b\x1b[2Jc\x9b31md\u202ee\rf\x00g\x1b[38;5;1mh\tä\n"
    assert visible(hostile) == "a\\x1b]0;title\\x07b\\x1b[2Jc<U+009B>31md<U+202E>e\\rf\\x00g\\x1b[38;5;1mh\tä\n"
    assert summarize_args({"x": 1, "command": "ls"}) == 'x=1 command="ls"'
