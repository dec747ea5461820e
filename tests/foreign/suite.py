"""What a foreign suite is: where it comes from, what it needs, and how it is run against Gamebox."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Checkout:
    """A repository on GitHub at one commit; its folder in FOREIGN_DIR has the repository's name."""

    repository: str
    commit: str

    @property
    def folder_name(self) -> str:
        """Name of its folder in FOREIGN_DIR."""
        return self.repository.rpartition("/")[2]


@dataclass(frozen=True)
class Place:
    """What a run may use: ``checkout`` is None for a suite that comes with a package, ``url`` is "" without a service.

    ``modules`` is the folder of a suite for Node, with its packages installed.
    """

    checkout: Path | None
    python: Path
    work: Path
    url: str
    key: str
    modules: Path | None = None

    @property
    def trusted(self) -> Mapping[str, str]:
        """Variables by which programs trust the service, if it has a certificate of its own."""
        files = self.work / "data/tls"
        bundle = str(files / "bundle.pem")
        return {"SSL_CERT_FILE": bundle, "REQUESTS_CA_BUNDLE": bundle, "NODE_EXTRA_CA_CERTS": str(files / "ca.pem")}

    @property
    def report(self) -> Path:
        """The file in JUnit's format that the run must write."""
        return self.work / "report.xml"

    def in_checkout(self, path: str) -> str:
        """Return a path beneath the checkout."""
        assert self.checkout is not None
        return str(self.checkout / path)

    def pytest(self, *arguments: str) -> list[str]:
        """Return the command that runs pytest of the suite's virtual environment without a configuration of ours."""
        return [str(self.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={self.report}", *arguments]


@dataclass(frozen=True)
class Suite:
    """A suite of someone else, or a real run of someone else's program.

    ``packages`` are installed into a virtual environment of its own, beside Gamebox with ``extras``; the first says which version
    is tried. ``command`` is run in the checkout, or in ``work`` without one, and writes ``report`` of its place. ``exceptions``
    are tests that may fail, each with the reason; any other failure fails the run, and so do fewer than ``tests`` that pass.
    """

    name: str
    subject: str
    packages: Sequence[str]
    command: Callable[[Place], Sequence[str]]
    tests: int
    extras: Sequence[str] = ()
    checkout: Checkout | None = None
    service: Sequence[str] | None = None  # options of the gamebox serve that it needs; None for no service
    env: Callable[[Place], Mapping[str, str]] = lambda _: {}
    exceptions: Mapping[str, str] = field(default_factory=dict)
    python: str = ""  # another interpreter than the one that runs this, as in "python3.12"
    minutes: float = 15
    node: Path | None = None  # folder with a program for Node and its packages' lock file, in the place of an environment
    domain: str = ""  # names below it must lead to this host
    origin: str = "comes with the package"  # where it is from, if it has no checkout
    venv: str = ""  # the suite whose virtual environment it uses, if it needs the same packages
