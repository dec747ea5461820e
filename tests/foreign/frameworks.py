"""Suites of the frameworks that have an adapter in sandbox/integrations, or a wire of their own in the service."""

from __future__ import annotations

from .suite import Checkout, Place, Suite
from .venvs import ROOT

_HERE = ROOT / "tests/foreign"
# Ours, so that neither pytest's settings nor its conftest of the gate are read.
_APART = ("-c", "/dev/null", "-o", "asyncio_mode=auto", "--confcutdir", str(_HERE), "--rootdir", str(_HERE))
_PLUGINS = {"PYTHONPATH": str(_HERE / "plugins")}
_ASYNC = ("pytest==9.2.0", "pytest-asyncio==1.3.0")
_OLD_GLOB = "the suite asserts what deepagents before 0.7 did: names relative to the folder, and folders among them"
_OLD_WRITE = "the suite asserts what deepagents before 0.7 did: a file that is there is not written anew"

_OLD = {
    "test_glob": _OLD_GLOB,
    "test_glob_basic_pattern": _OLD_GLOB,
    "test_glob_with_directories": _OLD_GLOB,
    "test_glob_hidden_files_explicitly": _OLD_GLOB,
    "test_glob_with_character_class": _OLD_GLOB,
    "test_glob_with_question_mark": _OLD_GLOB,
    "test_write_existing_file_fails": _OLD_WRITE,
}


def _inspect(place: Place) -> list[str]:
    return place.pytest(*_APART, str(_HERE / "inspect_self_check.py"))


def _inspect_tools(place: Place) -> list[str]:
    return place.pytest(*_APART, str(_HERE / "inspect_tools.py"))


def _mini_run(place: Place) -> list[str]:
    return place.pytest(*_APART[:2], *_APART[4:], str(_HERE / "mini_run.py"))


def _langchain(place: Place) -> list[str]:
    return place.pytest(*_APART, str(_HERE / "langchain_sandbox_suite.py"))


def _langchain_docker(place: Place) -> list[str]:
    return place.pytest(*_APART, str(_HERE / "langchain_plain_docker.py"))


def _mini(place: Place) -> list[str]:
    plugin = ("-c", "/dev/null", "-W", "ignore", "-p", "gamebox_mini", "--rootdir", place.in_checkout("."))
    return place.pytest(*plugin, place.in_checkout("tests/environments/test_docker.py"))


def _swerex(place: Place) -> list[str]:
    plugin = ("-c", "/dev/null", "-o", "asyncio_mode=auto", "-p", "gamebox_swerex", "--rootdir", place.in_checkout("."))
    # One test is marked as failing, with their own server.
    return place.pytest(*plugin, "--runxfail", place.in_checkout("tests/test_execution.py"))


SUITES = (
    Suite("inspect", "inspect_ai, `self_check`", ("inspect-ai==0.3.285", *_ASYNC), _inspect, tests=44, extras=("inspect",)),
    Suite(
        "inspect-service",
        "the same with sandboxes of a service",
        ("inspect-ai==0.3.285", *_ASYNC),
        _inspect,
        tests=44,
        extras=("inspect",),
        service=(),
        venv="inspect",
    ),
    Suite(
        "inspect-tools",
        "inspect_ai, an evaluation with seven of its tools",
        ("inspect-ai==0.3.285", *_ASYNC),
        _inspect_tools,
        tests=1,
        origin="ours, in `tests/foreign/inspect_tools.py`",
        extras=("inspect",),
        venv="inspect",
    ),
    Suite(
        "mini-run",
        "mini-swe-agent, runs of the command `mini`",
        ("mini-swe-agent==2.4.6", "pytest==9.2.0"),
        _mini_run,
        tests=2,
        origin="ours, in `tests/foreign/mini_run.py`",
        extras=("mini",),
    ),
    Suite(
        "deepagents",
        "LangChain's sandbox suite, the deepagents it was written for",
        ("deepagents==0.6.12", "langchain-tests==1.1.9"),
        _langchain,
        tests=86,
        extras=("deepagents",),
    ),
    Suite(
        "deepagents-service",
        "the same with a sandbox of a service",
        ("deepagents==0.6.12", "langchain-tests==1.1.9"),
        _langchain,
        tests=86,
        extras=("deepagents",),
        service=(),
        venv="deepagents",
    ),
    Suite(
        "deepagents-new",
        "LangChain's sandbox suite, the newest deepagents",
        ("deepagents==0.7.32", "langchain-tests==1.1.9"),
        _langchain,
        tests=79,
        extras=("deepagents",),
        exceptions=_OLD,
    ),
    Suite(
        "deepagents-docker",
        "the same on plain Docker without Gamebox, to compare: the same tests fail",
        ("deepagents==0.7.32", "langchain-tests==1.1.9"),
        _langchain_docker,
        tests=79,
        extras=("deepagents",),
        origin="its backend is in `tests/foreign/langchain_plain_docker.py`",
        exceptions=_OLD,
        venv="deepagents-new",
    ),
    Suite(
        "mini",
        "mini-swe-agent, `test_docker.py`",
        ("mini-swe-agent==2.4.6", "pytest==9.2.0"),
        _mini,
        tests=11,
        extras=("mini",),
        checkout=Checkout("SWE-agent/mini-swe-agent", "a83fcae82d2a08f0ee0c688f9d137b3566c097f8"),
        env=lambda _: _PLUGINS,
    ),
    Suite(
        "swerex",
        "SWE-ReX, `test_execution.py`, over its HTTP wire",
        ("swe-rex==1.4.0", *_ASYNC),
        _swerex,
        tests=50,
        checkout=Checkout("SWE-agent/SWE-ReX", "5c995c365dfb1fd5bc56fda688be5d8538f9931f"),
        service=(),
        env=lambda _: _PLUGINS,
    ),
)
