"""Clients of E2B, unchanged, over its wire: the suite of its Python SDK, and what programs do with it in several versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .suite import Checkout, Place, Suite
from .venvs import ROOT

DOMAIN = "sandboxes.localhost"
_HERE = ROOT / "tests/foreign"
_PYTEST = ("pytest==9.2.0", "pytest-timeout==2.4.0")
_TESTS = "packages/python-sdk/tests"

_INTERNET = "it needs the internet: it asks servers of others"
_KERNEL = "a pause without a snapshot of memory works, but the suite expects a new boot id of the kernel, which containers share"
_TEMPLATE = "it needs a template that E2B hosts for its tests: httpbin"
_CUT = "the client is newer than the suite: its library for HTTP reports a connection that was cut in another way"
EXCEPTIONS: dict[str, str] = {
    **dict.fromkeys(("test_pause_filesystem_only", "test_auto_pause_filesystem_only_reboots"), _KERNEL),
    **dict.fromkeys(
        (
            *("test_internet_access_enabled", "test_internet_access_default"),
            *("test_allow_specific_ip_with_deny_all", "test_deny_specific_ip", "test_allow_takes_precedence_over_deny"),
            *("test_update_network_applies_restrictions", "test_update_network_clears_existing_rules"),
        ),
        _INTERNET,
    ),
    "test_firewall_transform_injects_headers": _TEMPLATE,
    "test_kill_sandbox_while_command_is_running": _CUT,
}


def _suite(place: Place) -> list[str]:
    folders = ("sync/api_sync", "sync/sandbox_sync", "async/api_async", "async/sandbox_async", "shared/git")
    ini = place.in_checkout("packages/python-sdk/pytest.ini")
    return place.pytest("-c", ini, "-n", "2", "--timeout", "90", *(place.in_checkout(f"{_TESTS}/{each}") for each in folders))


def _templates(place: Place) -> list[str]:
    ini = place.in_checkout("packages/python-sdk/pytest.ini")
    folders = ("sync/template_sync", "async/template_async", "shared/template")
    return place.pytest("-c", ini, "-n", "2", "--timeout", "200", *(place.in_checkout(f"{_TESTS}/{each}") for each in folders))


def _smoke(place: Place) -> list[str]:
    return place.pytest("-c", "/dev/null", "--confcutdir", str(_HERE), "--rootdir", str(_HERE), str(_HERE / "e2b_smoke.py"))


def env(place: Place) -> Mapping[str, str]:
    return {"E2B_API_URL": place.url, "E2B_SANDBOX_URL": place.url, "E2B_API_KEY": place.key}


def _with_names(place: Place) -> Mapping[str, str]:
    """Return what clients need that find each sandbox by its name, over TLS."""
    port = place.url.rpartition(":")[2]
    return {"E2B_API_URL": place.url, "E2B_DOMAIN": f"{DOMAIN}:{port}", "E2B_API_KEY": place.key, **place.trusted}


def _smoke_suite(version: str) -> Suite:
    subject = f"the same in version {version}, with a few tests of ours"
    return Suite(f"e2b-{version}", subject, (f"e2b=={version}", *_PYTEST), _smoke, tests=7, service=(), env=env)


def _node(place: Place) -> list[str]:
    assert place.modules is not None
    report = ("--test-reporter=junit", f"--test-reporter-destination={place.report}")
    log = ("--test-reporter=spec", "--test-reporter-destination=stdout")
    return ["node", "--test", *report, *log, str(place.modules / "e2b_smoke.mjs")]


def _node_env(place: Place) -> Mapping[str, str]:
    return {**env(place), "E2B_DOMAIN": f"localhost:{place.url.rpartition(':')[2]}", "SCHEME": "http"}


def _node_suite(name: str, subject: str, domain: str, service: Sequence[str], env: Callable[[Place], Mapping[str, str]]) -> Suite:
    origin = "ours, in `tests/foreign/node`"
    return Suite(
        name, subject, ("e2b",), _node, tests=12, service=service, env=env, node=_HERE / "node", domain=domain, origin=origin
    )


_LANGUAGE = "the kernels are those of Python and bash"
_OTHER_LANGUAGES = ("javascript", "typescript", "r", "java")
_INTERPRETER_EXCEPTIONS: dict[str, str] = {
    **{f"test_cwd_{each}": _LANGUAGE for each in _OTHER_LANGUAGES},
    **{f"test_{each}_kernel": _LANGUAGE for each in ("js", "ts", "r", "java")},
    **dict.fromkeys(("test_js_esm_imports", "test_js_top_level_await"), _LANGUAGE),
    **dict.fromkeys(("test_list_contexts", "test_list_contexts_secure_traffic"), _LANGUAGE),
}


def _interpreter_suite(place: Place) -> list[str]:
    ini, tests = place.in_checkout("python/pytest.ini"), Path(place.in_checkout("python/tests"))
    # Tests of these have the names of those for Python and bash.
    files = [f"{flavour}/env_vars/test_{each}.py" for flavour in ("sync", "async") for each in ("java", "js", "r")]
    left_out = [f"--ignore={tests / each}" for each in files]
    return place.pytest("-c", ini, "--rootdir", str(tests), "-n", "2", "--timeout", "120", *left_out, str(tests))


def _interpreter_smoke(place: Place) -> list[str]:
    return place.pytest(
        "-c", "/dev/null", "--confcutdir", str(_HERE), "--rootdir", str(_HERE), str(_HERE / "e2b_interpreter_smoke.py")
    )


def _interpreter_env(place: Place) -> Mapping[str, str]:
    # In the checkout there is a folder with the name of the package.
    return {**env(place), "PYTHONSAFEPATH": "1"}


_INTERPRETER = (
    Suite(
        "e2b-code-interpreter",
        "the code interpreter of E2B, synchronous and asynchronous",
        ("e2b-code-interpreter==2.9.1", "e2b==2.45.1", *_PYTEST, "pytest-asyncio==1.5.0", "pytest-xdist==3.8.0", "python-dotenv"),
        _interpreter_suite,
        tests=100,
        checkout=Checkout("https://github.com/e2b-dev/code-interpreter", "7df1757bfd5baa037f909ce97c2dbe014da973c0"),
        service=(),
        env=_interpreter_env,
        exceptions=_INTERPRETER_EXCEPTIONS,
        minutes=40,
    ),
    Suite(
        "e2b-code-interpreter-2.11.5",
        "the same in version 2.11.5, with a few tests of ours",
        ("e2b-code-interpreter==2.11.5", *_PYTEST),
        _interpreter_smoke,
        tests=11,
        service=(),
        env=env,
    ),
)

SUITES = (
    *_INTERPRETER,
    Suite(
        "e2b",
        "the SDK of E2B, synchronous and asynchronous",
        ("e2b==2.45.1", *_PYTEST, "pytest-asyncio==1.5.0", "pytest-xdist==3.8.0", "python-dotenv"),
        _suite,
        tests=357,
        checkout=Checkout("https://github.com/e2b-dev/E2B", "b8029973aa7da5f741f7bb1a9f833b38a0885438"),
        service=("--tls-local",),
        domain=DOMAIN,
        env=_with_names,
        exceptions=EXCEPTIONS,
        minutes=30,
    ),
    Suite(
        "e2b-templates",
        "templates of the SDK of E2B; ubuntu:22.04 of the suite is gamebox/e2b",
        ("e2b==2.45.1", *_PYTEST, "pytest-asyncio==1.5.0", "pytest-xdist==3.8.0", "python-dotenv"),
        _templates,
        tests=231,
        checkout=Checkout("https://github.com/e2b-dev/E2B", "b8029973aa7da5f741f7bb1a9f833b38a0885438"),
        service=("--config", str(_HERE / "e2b_templates.toml")),
        env=env,
    ),
    *(_smoke_suite(version) for version in ("2.31.0", "2.51.0", "2.63.0")),
    _node_suite("e2b-node", "the SDK of E2B for JavaScript, with a few tests of ours", "localhost", (), _node_env),
    _node_suite(
        "e2b-node-tls",
        "the same over TLS, with names of sandboxes",
        DOMAIN,
        ("--tls-local",),
        lambda place: {**_with_names(place), "SCHEME": "https"},
    ),
)
