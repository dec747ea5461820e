"""Which of Gamebox's images fits a repository, by the names of files at its top. Nothing of the repository is read or run."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

from sandbox.docker.spec import DEFAULT_IMAGE
from sandbox.frozen import dataclass

from .beneath import Folder

NODE, TOOLCHAINS = "gamebox/node", "gamebox/toolchains"
CODEACT = "gamebox/codeact"  # which also has Node.js
_JAVASCRIPT = ("package.json",)
_PYTHON = ("pyproject.toml", "requirements.txt", "setup.py", "setup.cfg", "Pipfile")
_COMPILED = ("go.mod", "Cargo.toml", "pom.xml", "build.gradle", "build.gradle.kts")


@dataclass(frozen=True, slots=True)
class Choice:
    """The image to use; ``why`` names the files that decided, "" if none did. ``missing`` would fit better and is not there.

    ``chosen`` says that it is another than the default.
    """

    image: str
    why: str = ""
    missing: str = ""
    chosen: bool = False

    def __str__(self) -> str:
        """Return one line for the user; "" if there is nothing to say."""
        if self.missing:
            how = f"make it with: gamebox setup --{self.missing.partition('/')[2]}"
            return f"the image is {self.image}; {self.missing} would fit {self.why}, but is not here: {how}"
        if not self.chosen:
            return ""
        return f"the image is {self.image}, for {self.why}; --image names another"


def choose_image(repo: Path, has_image: Callable[[str], bool], default: str = DEFAULT_IMAGE) -> Choice:
    """Return the image for ``repo``. ``has_image`` says whether the engine has one; it is not asked about the default.

    A repository gets ``default`` where that fits, too, or where it cannot be read.
    """
    try:
        with Folder(repo) as held:
            javascript, python, compiled = (_present(held, names) for names in (_JAVASCRIPT, _PYTHON, _COMPILED))
    except OSError:
        return Choice(default)
    why = " and ".join((*javascript, *compiled, *python))
    if not javascript and not compiled:
        return Choice(default, why)
    only_node = bool(javascript) and not python and not compiled
    fitting = (NODE, CODEACT) if only_node else (TOOLCHAINS,) if compiled else (TOOLCHAINS, NODE, CODEACT)
    if default in fitting:
        return Choice(default, why)
    for image in fitting:
        if has_image(image):
            return Choice(image, why, chosen=True)
    return Choice(default, why, fitting[0])


def _present(held: Folder, names: tuple[str, ...]) -> list[str]:
    """Return the first of the names that is a file here, as a list."""
    found = ((name, held.status(name)) for name in names)
    return next(([name] for name, status in found if status is not None and stat.S_ISREG(status.st_mode)), [])
