"""A coding agent: writes a program and its test in a sandbox, runs it, and fixes what fails.

python docs/examples/coding_agent.py                        # a scripted brain, in a container
python docs/examples/coding_agent.py --local                # without a container: NO isolation
python docs/examples/coding_agent.py --model provider/name "Write a program that ..."
"""

from __future__ import annotations

import argparse

from agent import (
    Agent,
    Budget,
    FunctionCallingLanguage,
    Goal,
    LiteLLMModel,
    PrintingHooks,
    ScriptedModel,
    standard_registry,
)
from sandbox import DockerEnvironment, Environment, LocalEnvironment, SandboxError

TASK = "Write roman.py with a function roman(number) that gives Roman numerals, and a test that passes."

GOALS = [
    Goal(1, "task", "Write the program the user asks for in the working folder of the sandbox."),
    Goal(2, "tested", "Write a test, run it, and finish only when it passes."),
]

PROGRAM = """\
SIGNS = [(10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]


def roman(number):
    text = ""
    for value, sign in SIGNS:
        if number >= value:
            text += sign
            number -= value
    return text
"""
TEST = "from roman import roman\nassert [roman(n) for n in (1, 4, 8, 19)] == ['I', 'IV', 'VIII', 'XIX']\nprint('ok')\n"

SCRIPT = [
    {"thought": "First the program.", "tool": "write", "args": {"path": "roman.py", "content": PROGRAM}},
    {"thought": "Then a test.", "tool": "write", "args": {"path": "test_roman.py", "content": TEST}},
    {"tool": "run", "args": {"command": "python3 -B test_roman.py"}},
    {
        "thought": "Signs repeat: 8 is VIII. The if has to be a while.",
        "tool": "edit",
        "args": {"path": "roman.py", "old_text": "        if number", "new_text": "        while number"},
    },
    {"tool": "run", "args": {"command": "python3 -B test_roman.py"}},
    {"tool": "finish", "args": {"summary": "roman.py is written and its test passes."}},
]


def make_agent(model: str | None = None, environment: Environment | None = None) -> Agent:
    brain = ScriptedModel(SCRIPT) if model is None else LiteLLMModel(model)
    return Agent(
        GOALS,
        FunctionCallingLanguage(),
        standard_registry(),
        brain,
        environment or DockerEnvironment(image="gamebox/base"),
        budget=Budget(max_iterations=30, max_seconds=600),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default=TASK)
    parser.add_argument("--model")
    parser.add_argument("--local", action="store_true")
    options = parser.parse_args()
    with LocalEnvironment() if options.local else DockerEnvironment(image="gamebox/base") as environment:
        agent = make_agent(options.model, environment)
        agent.hooks.append(PrintingHooks())
        run = agent.execute(options.task)
        print(run.result["summary"] if run.ok else f"not finished: {run.reason}")
        if run.ok:
            print(environment.read("roman.py").unwrap().content if options.task == TASK else "")
    return 0 if run.ok else 1


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except SandboxError as error:
        raise SystemExit(str(error)) from None
