"""The file mcp.json: read as other clients read it, from the user's folder or where the user says, and from nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent import Goal
from agent.hub import AgentSpec
from agent.job.mcp_config import MAX_BYTES, config_file, load_servers
from agent.job.mcp_servers import servers_of, with_servers
from sandbox.errors import SandboxError

FILE: dict[str, Any] = {
    "mcpServers": {
        "GitHub Notes": {
            "type": "stdio",
            "command": "npx",
            "args": ["-y", "notes server", "--level=${LEVEL:-two words}"],
            "env": {"NOTES_TOKEN": "${NOTES_TOKEN}", "MODE": "production"},
            "alwaysAllow": ["add"],
        },
        "tracker": {
            "type": "http",
            "url": "https://${HOST}/mcp",
            "headers": {"Authorization": "Bearer ${env:TRACKER_TOKEN}"},
            "timeout_seconds": 5,
        },
        "old": {"command": "python3 -m old_server", "disabled": True},
        "line": {"command": "python3 -m line_server"},
    }
}
VARIABLES = {"NOTES_TOKEN": "notes-secret-1", "TRACKER_TOKEN": "tracker-secret-2", "HOST": "tracker.example.com"}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the user's own file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    config_file().parent.mkdir(parents=True)
    return config_file()


def test_servers_are_declared_as_other_clients_declare_them(own: Path) -> None:
    assert load_servers(None, {}).declared == {}
    own.write_text(json.dumps(FILE))
    found = load_servers(None, VARIABLES)
    assert found.declared == {
        "github-notes": {
            "command": "exec npx -y 'notes server' '--level=two words'",
            "env": {"NOTES_TOKEN": "notes-secret-1", "MODE": "production"},
            "optional": True,
        },
        "tracker": {
            "url": "https://tracker.example.com/mcp",
            "headers": {"Authorization": "Bearer tracker-secret-2"},
            "timeout_seconds": 5,
            "optional": True,
        },
        "line": {"command": "python3 -m line_server", "env": {}, "optional": True},
    }
    values = {value for _, value in found.secrets}
    assert {"notes-secret-1", "tracker-secret-2"} <= values
    assert not {"production", "tracker.example.com"} & values, "what is no secret stays readable"


@pytest.mark.parametrize("name", ["GITHUB_PAT", "PGPASS", "DB_CREDS", "SENTRY_DSN", "SMTP_PW", "SESSION_COOKIE"])
def test_a_value_is_a_secret_by_its_name(own: Path, name: str) -> None:
    own.write_text(json.dumps({"mcpServers": {"one": {"command": "true", "env": {name: "hidden-value"}}}}))
    assert "hidden-value" in {value for _, value in load_servers(None, {}).secrets}


def test_a_key_in_an_address_is_a_secret(own: Path) -> None:
    address = "https://t.example.com/mcp?api_key=sesame%2F12345&page=tracker-pages"
    own.write_text(json.dumps({"mcpServers": {"one": {"url": address}}}))
    servers = servers_of([f"two={address}"], [], {})
    assert {value for _, value in servers.secrets} == {"sesame%2F12345", "sesame/12345"}
    assert servers.urls == (address, address)
    assert "sesame" not in servers.description


def test_the_file_in_the_documentation_is_valid(own: Path) -> None:
    page = (Path(__file__).parents[4] / "docs/reference/agents/mcp.md").read_text()
    own.write_text(page.split("```json\n")[1].split("```")[0])
    assert sorted(load_servers(None, VARIABLES).declared) == ["notes", "tracker"]


def test_a_file_that_is_named_for_a_run_is_used_in_place_of_the_users_own(own: Path, tmp_path: Path) -> None:
    own.write_text(json.dumps(FILE))
    named = tmp_path / "mine.json"
    named.write_text(json.dumps({"servers": {"one": {"command": "true"}}}))
    assert load_servers(named, {}).declared == {"one": {"command": "exec true", "env": {}}}
    assert load_servers(Path("/dev/null"), {}).declared == {}


def test_no_file_of_a_repository_is_read(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".mcp.json", "mcp.json", ".gamebox/mcp.json", ".vscode/mcp.json", ".cursor/mcp.json"):
        path = tmp_path / "repo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(FILE))
    monkeypatch.chdir(tmp_path / "repo")
    monkeypatch.setenv("XDG_CONFIG_HOME", ".gamebox")  # a relative folder would be looked up in the repository
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert servers_of([], [], VARIABLES).declared == {}


def test_the_command_line_takes_precedence(own: Path) -> None:
    own.write_text(json.dumps(FILE))
    servers = servers_of(["line=python3 other.py"], ["tracker:X-Key=KEY"], {**VARIABLES, "KEY": "header-secret-3"})
    assert servers.declared["line"] == {"command": "python3 other.py"}
    assert servers.declared["tracker"]["headers"]["X-Key"] == "header-secret-3"
    assert servers.urls == ("https://tracker.example.com/mcp",)
    assert "secret" not in servers.description
    assert "mcp.json" in servers.description


def spec(**more: Any) -> AgentSpec:
    return AgentSpec(name="a", description="It.", goals=(Goal("Do it."),), actions=("finish",), **more)


def test_an_agent_that_only_reads_gets_no_servers_of_the_users_own_file(own: Path) -> None:
    own.write_text(json.dumps(FILE))
    servers = servers_of([], [], VARIABLES)
    assert "mcp" in with_servers(spec(), servers).actions
    assert "mcp" not in with_servers(spec(read_only=True), servers).actions
    with pytest.raises(SandboxError, match="only reads"):
        with_servers(spec(read_only=True), servers_of([], [], VARIABLES, own))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON in line 1"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "mcpServers"),
        ({"mcpServers": []}, "mcpServers"),
        ({"mcpServers": {str(number): {} for number in range(21)}}, "at most 20"),
        ({"mcpServers": {"a": 1}}, "'a' is not an object"),
        ({"mcpServers": {"1": {"command": "c"}}}, "begins with a letter"),
        ({"mcpServers": {"a": {"command": "c"}, "A": {"command": "c"}}}, "same name"),
        ({"mcpServers": {"a": {}}}, "either a command or a url"),
        ({"mcpServers": {"a": {"command": "c", "url": "https://example.com"}}}, "either a command or a url"),
        ({"mcpServers": {"a": {"type": "sse", "url": "https://example.com"}}}, "the type 'sse'"),
        ({"mcpServers": {"a": {"type": "http", "command": "c"}}}, "either a command or a url"),
        ({"mcpServers": {"a": {"command": "c", "args": "x"}}}, "args that are a list"),
        ({"mcpServers": {"a": {"command": "c", "args": [1]}}}, "in args that is not a text"),
        ({"mcpServers": {"a": {"command": "c", "env": ["secret-9"]}}}, "env that are an object"),
        (
            {"mcpServers": {"a": {"command": "c", "env": {"K": "secret-9${MISSING}"}}}},
            "variable MISSING, which is not set",
        ),
        ({"mcpServers": {"a": {"url": "https://example.com", "headers": {"K": "secret-9\nX: y"}}}}, "several lines"),
        ({"mcpServers": {"a": {"url": "file:///etc/passwd"}}}, "not an http or https address"),
        ({"mcpServers": {"a": {"url": "https://me:secret-9@example.com"}}}, "a user or a password"),
    ],
)
def test_a_file_that_is_not_valid_is_refused_without_a_value_of_it(own: Path, content: Any, words: str) -> None:
    own.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(SandboxError) as caught:
        load_servers(None, {})
    assert words in caught.value.message
    assert "secret-9" not in f"{caught.value.message} {caught.value.hint}"


def test_a_file_that_others_can_write_is_not_read(own: Path, tmp_path: Path) -> None:
    own.write_text(json.dumps(FILE))
    own.chmod(0o666)
    with pytest.raises(SandboxError, match="other users can write it"):
        load_servers(None, VARIABLES)
    with pytest.raises(SandboxError, match="there is no file"):
        load_servers(tmp_path / "missing.json", VARIABLES)
    with pytest.raises(SandboxError, match="regular file"):
        load_servers(tmp_path, VARIABLES)
    own.chmod(0o600)
    own.write_text(" " * (MAX_BYTES + 1))
    with pytest.raises(SandboxError, match="more than 1 MiB"):
        load_servers(None, VARIABLES)
