"""Dockerfiles become plans, or are refused with their line."""

from __future__ import annotations

import pytest

from sandbox.docker.builds.configuration import Configuration, expand
from sandbox.docker.builds.dockerfile import parse_dockerfile
from sandbox.docker.builds.steps import Copy, Env, Run, User, Workdir
from sandbox.errors import ErrorCode, SandboxError

ARCHIVE = "a" * 64

WHOLE = r"""# syntax=docker/dockerfile:1
# escape=\
ARG BASE=gamebox/base
ARG UNUSED
from ${BASE} AS only
ARG VERSION=1.0
ARG TOOL
LABEL title="A $VERSION tool" kind='plain $VERSION'
ENV OLD style with  spaces
ENV A="x y" B='$literal' C=a\ b D=$VERSION E=${VERSION:-2}-$A \
    # a comment between
    F=last
RUN apt-get update \
  && apt-get install -y jq
RUN ["/bin/tool", "--flag"]
COPY --chown=agent:agent --chmod=755 --link src/ "other file" /app/
COPY ["a b", "c"]
ADD $VERSION.txt ./
WORKDIR /app/$VERSION
USER agent
EXPOSE 80 53/udp
ENTRYPOINT ["tool"]
CMD serve --all
SHELL ["/bin/bash", "-ec"]
RUN echo $0
"""


def test_a_dockerfile_becomes_a_plan() -> None:
    plan = parse_dockerfile(WHOLE, archive=ARCHIVE, arguments={"TOOL": "t"})
    local = (("VERSION", "1.0"), ("TOOL", "t"))
    assert plan.base == "gamebox/base"
    assert plan.steps == (
        Env((("OLD", "style with  spaces"),)),
        Env((("A", "x y"), ("B", r"\$literal"), ("C", "a b"), ("D", "1.0"), ("E", "1.0-$A"), ("F", "last"))),
        Run("apt-get update && apt-get install -y jq", env=local),
        Run(argv=("/bin/tool", "--flag"), env=local),
        Copy(ARCHIVE, "src/", "/app/", "agent:agent", 0o755),
        Copy(ARCHIVE, "other file", "/app/", "agent:agent", 0o755),
        Copy(ARCHIVE, "a b", "c"),
        Copy(ARCHIVE, "1.0.txt", "./"),
        Workdir("/app/1.0"),
        User("agent"),
        Run(argv=("/bin/bash", "-ec", "echo $0"), env=local),
    )
    assert dict(plan.labels) == {"title": "A 1.0 tool", "kind": "plain $VERSION"}
    assert (plan.entrypoint, plan.command, plan.ports) == (("tool",), ("/bin/sh", "-c", "serve --all"), ("80", "53/udp"))


def test_quotes_are_read_as_docker_reads_them() -> None:
    plan = parse_dockerfile('FROM x\nENV A=1\nENV B="a\\"b\\c" C=\'$A\' D="$A\\$A" E="" F=a"b c"d')
    found = Configuration()
    for step in plan.steps:
        found = found.after(step)
    assert found.env == {"A": "1", "B": 'a"b\\c', "C": "$A", "D": "1$A", "E": "", "F": "ab cd"}


def test_env_replaces_an_arg_of_the_same_name() -> None:
    plan = parse_dockerfile("FROM x\nARG V=arg\nENV V=env\nWORKDIR /$V\nLABEL v=$V")
    assert plan.steps[-1] == Workdir("/$V")
    assert expand("/$V", {"V": "env"}) == "/env"
    assert plan.labels == (("v", "env"),)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        pytest.param("FROM a\nFROM b", 2, "Several stages", id="stages"),
        pytest.param("FROM a\nCOPY --from=b x y", 2, "--from=b", id="from_a_stage"),
        pytest.param("FROM --platform=linux/arm64 a", 1, "--platform", id="platform"),
        pytest.param("FROM scratch", 1, "no image", id="scratch"),
        pytest.param("FROM a\n\nRUN --mount=type=secret x", 3, "--mount", id="mount"),
        pytest.param("FROM a\nRUN <<EOF\nx\nEOF", 2, "here-document", id="heredoc"),
        pytest.param("FROM a\nADD https://example.com/x /x", 2, "example.com", id="add_of_an_address"),
        pytest.param("FROM a\nADD x.tar.gz /x", 2, "x.tar.gz", id="add_of_an_archive"),
        pytest.param("FROM a\nVOLUME /x", 2, "VOLUME", id="volume"),
        pytest.param("FROM a\nONBUILD RUN x", 2, "ONBUILD", id="onbuild"),
        pytest.param("FROM a\nFROBNICATE x", 2, "FROBNICATE", id="unknown"),
        pytest.param("FROM a\nRUN", 2, "nothing after", id="empty"),
        pytest.param("RUN x", 1, "before FROM", id="no_from_yet"),
        pytest.param("FROM a\nENV A=1 B", 2, "NAME=VALUE", id="half_a_variable"),
        pytest.param("FROM a\nENV A='1", 2, "quote", id="open_quote"),
        pytest.param("FROM a\nCOPY a b c", 2, "needs a folder", id="several_to_a_file"),
        pytest.param("FROM a\nCOPY a", 2, "destination", id="no_destination"),
        pytest.param("FROM a\nCOPY --chmod=u+x a b", 2, "--chmod", id="symbolic_mode"),
        pytest.param("# escape=`\nFROM a", 1, "escape", id="escape"),
    ],
)
def test_what_is_not_supported_is_named_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(SandboxError) as caught:
        parse_dockerfile(text, archive=ARCHIVE)
    assert caught.value.code is ErrorCode.invalid_arguments
    assert f"ine {line} of the Dockerfile" in caught.value.message
    assert words in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "# nothing", "ARG A=1"])
def test_a_dockerfile_has_a_base(text: str) -> None:
    with pytest.raises(SandboxError, match="no FROM"):
        parse_dockerfile(text)


def test_values_for_no_arg_and_files_without_an_archive_are_refused() -> None:
    with pytest.raises(SandboxError, match="no ARG A"):
        parse_dockerfile("FROM x", arguments={"A": "1"})
    with pytest.raises(SandboxError, match="build context"):
        parse_dockerfile("FROM x\nCOPY a b")


def test_a_here_string_is_no_here_document() -> None:
    text = "cat <<< word; echo $((1<<2))"
    assert parse_dockerfile(f"FROM x\nRUN {text}").steps == (Run(text),)


LONG = "x" * 60_000


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"FROM a\nARG X={LONG}\n" + "WORKDIR $X\n" * 100, id="steps"),
        pytest.param(f"FROM a\nARG X={LONG}\nENV A={'$X' * 100}", id="value"),
        pytest.param(f"FROM a\nARG X={LONG}\n" + "RUN x\n" * 100, id="variables_of_commands"),
        pytest.param(f"FROM a\nARG X={LONG}\n" + "".join(f"ARG v{number}=$X\n" for number in range(100)), id="arg"),
        pytest.param(f"FROM a\nENV X={LONG}\n" + "".join(f"ENV v{number}=$X\n" for number in range(100)), id="env"),
        pytest.param(f"FROM a\nENV X={LONG}\n" + "".join(f"LABEL v{number}=$X\n" for number in range(100)), id="label"),
    ],
)
def test_variables_do_not_make_a_dockerfile_large(text: str) -> None:
    with pytest.raises(SandboxError) as caught:
        parse_dockerfile(text)
    assert caught.value.code is ErrorCode.invalid_arguments
    assert " more than " in caught.value.message
