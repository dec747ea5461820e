"""Where the scripted runs happen: a sandbox without commands that says of itself what one in a container says before its start."""

from __future__ import annotations

from agent.hub import AgentSpec
from sandbox import DockerEnvironment, LocalEnvironment
from sandbox.testing import FakeEnvironment, FakeRun, Ran

CALC = "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return add(a, a)\n"
TESTS = "import calc\n\nassert calc.add(2, 3) == 5, calc.add(2, 3)\n"
FILES = {"calc.py": CALC, "test_calc.py": TESTS, "README.md": "# A libary for sums\n"}
IMAGE = "gamebox/base"
TEST = "python3 test_calc.py"
HANGS = "./deploy.sh --wait"
WRITES = "sed -i s/-/+/ calc.py"
# A file of this size, read a few times, is more than the monologue's memory shows.
LONG = "".join(f"{n:>5} the quick brown fox jumps over the lazy dog, again and again and again\n" for n in range(400))


class Scene(FakeEnvironment):
    """Files and a few commands. Nothing of the machine gets in: no clock, no paths, no process."""

    def __init__(self, image: str) -> None:
        super().__init__({**FILES, "long.txt": LONG}, self._ran)
        self.image = image
        self._container = DockerEnvironment(image=image)  # never started: only its words are wanted

    def describe(self) -> dict[str, str]:
        """What the container says of itself, then what this sandbox says is left."""
        own = super().describe()
        return {**self._container.describe(), **{title: own[title] for title in own.keys() & {"left"}}}

    def _ran(self, run: FakeRun) -> Ran | None:
        if run.command == TEST:
            return Ran(stderr="Traceback (most recent call last):\n  ...\nAssertionError: -1\n", exit_code=1)
        if run.command == HANGS:
            return Ran(stdout="waiting for the lock of another deployment\n", seconds=1e6)
        if run.command == WRITES:
            self.upload(CALC.replace("-", "+").encode(), "calc.py").unwrap()
            return Ran()
        if run.command.startswith("make "):
            return Ran(stdout=f"{run.command.removeprefix('make ')} is built\n")
        return None


class WithProcesses(LocalEnvironment):
    """For an agent whose kits start programs when they are made. What is left of the machine is not said."""

    def describe(self) -> dict[str, str]:
        """What a container says of itself."""
        return DockerEnvironment(image=IMAGE).describe()


def scene_of(spec: AgentSpec) -> Scene | WithProcesses:
    """The scene in the image that the agent wants; to be closed."""
    return WithProcesses().start() if "mcp" in spec.actions else Scene(spec.image or IMAGE)
