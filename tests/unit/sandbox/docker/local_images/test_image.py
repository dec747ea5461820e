"""Image: a value that never changes, whose steps are checked when they are added, and the files that it copies."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from sandbox import Image, SandboxError
from sandbox.docker.builds.names import check_engine_name
from sandbox.docker.builds.steps import Env, Run, User, Workdir
from sandbox.docker.environment import DockerEnvironment
from sandbox.docker.local_images.contexts import pack
from sandbox.docker.local_images.image import CopyFiles
from sandbox.errors import ErrorCode


def members(root: Path, source: str) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(pack(root, source)))) as archive:
        return {member.name: member for member in archive}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("app/main.py", "app/deep/x.txt", "node_modules/big.js", "notes.md", ".git/HEAD", "app/odd[1].txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    os.symlink("/etc/passwd", tmp_path / "app" / "link")
    os.mkfifo(tmp_path / "app" / "pipe")
    return tmp_path


def test_each_call_returns_a_new_value_with_one_step_more() -> None:
    base = Image.debian()
    image = base.apt("jq", "bc").pip("rich>=13").env({"A": "1"}, B="$A").workdir("/srv").user("agent").run(["true", "x y"])
    assert base.steps == ()
    assert image.base == "gamebox/base"
    apt, pip, env, workdir, user, run = image.steps
    assert isinstance(apt, Run)
    assert "--no-install-recommends jq bc" in apt.command
    assert apt.user == "root"
    assert isinstance(pip, Run)
    assert pip.command.endswith("'rich>=13'")
    assert (env, workdir, user) == (Env((("A", "1"), ("B", "$A"))), Workdir("/srv"), User("agent"))
    assert isinstance(run, Run)
    assert run.argv == ("true", "x y")
    assert image == base.apt("jq", "bc").pip("rich>=13").env(A="1", B="$A").workdir("/srv").user("agent").run(("true", "x y"))
    assert len({image, base, base.run("true"), base.run("false")}) == 4
    assert str(base) == "gamebox/base"
    assert str(base.run("true")) != str(base.run("false"))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: Image.debian().apt(), "no package"),
        (lambda: Image.debian().apt("-o=Dir::Etc=/x"), "not a package"),
        (lambda: Image.debian().pip("--index-url=x"), "not a package"),
        (lambda: Image.debian().run(" "), "no command"),
        (lambda: Image.debian().env(), "no variable"),
        (lambda: Image.debian().env({"A-B": "1"}), "not a name for a variable"),
        (lambda: Image.of(""), "empty name"),
        (lambda: Image.debian().copy("no/such", "/x"), "does not exist"),
        (lambda: Image.from_dockerfile("no/such/Dockerfile"), "is not a folder"),
    ],
)
def test_what_cannot_be_built_is_refused_when_it_is_said(call: object, error: str) -> None:
    with pytest.raises(SandboxError, match=error) as caught:
        call()  # type: ignore[operator]
    assert caught.value.hint


def test_wrong_types_are_said_by_name() -> None:
    with pytest.raises(TypeError, match="command"):
        Image.debian().run(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="image must be a str or a Image"):
        DockerEnvironment(7)  # type: ignore[arg-type]


def test_a_dockerfile_becomes_steps_with_the_files_of_its_context(tree: Path) -> None:
    lines = ("FROM gamebox/base", "ARG V=1", "COPY app $WHERE/", "COPY $X /y", "RUN echo $V", "LABEL a=b", 'CMD ["x"]')
    (tree / "Dockerfile").write_text("\n".join(lines))
    image = Image.from_dockerfile(tree / "Dockerfile", arguments={"V": "2"})
    first, second, run = image.steps
    assert isinstance(first, CopyFiles)
    assert (first.root, first.source, first.step.destination) == (tree, "app", "$WHERE/")
    assert isinstance(second, CopyFiles)
    assert second.source == "."
    assert isinstance(run, Run)
    assert run.env == (("V", "2"),)
    assert dict(image.settings) == {"labels": (("a", "b"),), "command": ("x",)}
    (tree / "Dockerfile").write_text("FROM gamebox/base\nVOLUME /x\n")
    with pytest.raises(SandboxError, match="Line 2"):
        Image.from_dockerfile(tree / "Dockerfile")
    with pytest.raises(SandboxError) as caught:
        Image.from_dockerfile(tree / "Other")
    assert caught.value.code is ErrorCode.path_not_found


def test_the_same_content_is_packed_to_the_same_bytes(tree: Path) -> None:
    before = b"".join(pack(tree, "app"))
    os.utime(tree / "app" / "main.py", (1, 1))
    (tree / "notes.md").write_text("of no concern")
    assert b"".join(pack(tree, "app")) == before
    (tree / "app" / "main.py").chmod(0o755)
    assert b"".join(pack(tree, "app")) != before


def test_links_stay_links_and_what_is_no_file_is_left_out(tree: Path) -> None:
    found = members(tree, "app")
    assert sorted(found) == ["app", "app/deep", "app/deep/x.txt", "app/link", "app/main.py", "app/odd[1].txt"]
    assert found["app/link"].issym()
    assert (found["app/main.py"].uid, found["app/main.py"].uname) == (0, "")
    assert sorted(members(tree, "app/*.txt")) == ["app/odd[1].txt"]
    assert sorted(members(tree, "app/odd[1].txt")) == ["app/odd[1].txt"]
    assert sorted(members(tree, "*.md")) == ["notes.md"]
    for source in ("../x", "app/link/x", "nothing*"):
        with pytest.raises(SandboxError):
            members(tree, source)


def test_dockerignore_leaves_out_and_takes_back(tree: Path) -> None:
    (tree / ".dockerignore").write_text("# a comment\nnode_modules\n.git\napp/**\n!app/deep/x.txt\n")
    assert sorted(members(tree, ".")) == [".dockerignore", "app", "app/deep/x.txt", "notes.md"]
    with pytest.raises(SandboxError, match="dockerignore leaves it out"):
        members(tree, "node_modules")
    (tree / ".dockerignore").write_bytes(b"\xff")
    with pytest.raises(SandboxError, match="UTF-8"):
        members(tree, ".")


@pytest.mark.parametrize("name", ["app", "team/app:2", "registry.example.com:5000/a/b:v1"])
def test_names_that_an_engine_takes(name: str) -> None:
    assert check_engine_name(name).startswith(name)


@pytest.mark.parametrize("name", ["", "App", "a b", "a:b:c", "-x", "gamebox/base", "gamebox", "gamebox-build/x:y", "a" * 300])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(SandboxError):
        check_engine_name(name)
