"""The fixtures of the pytest plugin in sandboxes of a service."""

from __future__ import annotations

import pytest

from tests.integration.own_engine import IMAGE
from tests.servers.gamebox_service import ServiceProcess

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


@pytest.fixture
def options(service: ServiceProcess, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("GAMEBOX_URL", service.url)
    monkeypatch.setenv("GAMEBOX_API_KEY", service.key)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    return ["--sandbox-image", IMAGE]


def test_a_test_has_a_sandbox_of_the_service(pytester: pytest.Pytester, options: list[str]) -> None:
    (pytester.path / "files").mkdir()
    (pytester.path / "files/a").write_text("one")
    pytester.makepyfile("""
        import pytest
        from sandbox import Limits, RemoteEnvironment

        @pytest.mark.sandbox(workspace="files", env={"COLOUR": "red"}, limits={"memory_bytes": 64 << 20})
        def test_it(sandbox):
            assert isinstance(sandbox, RemoteEnvironment)
            assert sandbox.sh("cat a; echo $COLOUR").stdout == "onered\\n"

        def test_that_fails(sandbox):
            sandbox.run("echo printed; exit 3")
            assert False
    """)
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*run echo printed; exit 3*exit code 3*"])


def test_what_has_no_effect_there_is_said(pytester: pytest.Pytester, options: list[str]) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.sandbox(runtime="runsc")
        def test_it(sandbox):
            pass
    """)
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*runtime has no effect in a sandbox of a service*"])


def test_an_address_is_needed(
    pytester: pytest.Pytester, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GAMEBOX_URL")
    pytester.makepyfile("def test_it(sandbox): pass")
    result = pytester.runpytest_subprocess(*options, "--sandbox-remote")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*The address of the service is missing*"])
