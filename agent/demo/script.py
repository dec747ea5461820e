"""The steps of the demo's scripted brain.

Each step is a thought, a tool and its arguments, as a model would send them. Edits are exact replacements, so the
script fails loudly with any other version of the library than that of ``CASE``.
"""

from __future__ import annotations

from typing import Any, Final

from .case import CASE

DURATION: Final = "aniso8601/duration.py"
TESTS: Final = "aniso8601/tests/test_duration.py"

REGRESSION_TEST: Final = """\
    def test_parse_duration_without_middle_component(self):
        # Hours with seconds but no minutes, years with days but no months
        day = 24 * 3600
        year = 365 * day

        testtuples = (('PT1H30S', 3630),
                      ('PT1H0,5S', 3600.5),
                      ('P1Y15D', year + 15 * day),
                      ('P1Y0.5D', year + 0.5 * day),
                      ('P1Y15DT1H30S', year + 15 * day + 3630))

        for testtuple in testtuples:
            result = parse_duration(testtuple[0])

            self.assertEqual(result.total_seconds(), testtuple[1])

        for outoforder in ('PT30S1H', 'P15D1Y'):
            with self.assertRaises(ISOFormatError):
                parse_duration(outoforder, builder=None)

"""
TEST_ANCHOR: Final = "    def test_parse_duration_prescribed_time_timeindate(self):\n"
REGRESSION_COMMAND: Final = "python3 -B -m unittest aniso8601.tests.test_duration -k without_middle_component"

SCRIPT: Final[tuple[dict[str, Any], ...]] = (
    {
        "thought": "I start by looking at what is here.",
        "tool": "list",
        "args": {"path": ".", "depth": 2},
    },
    {
        "thought": "Before I change anything I want to see the fault: both inputs of the report and a mix of them.",
        "tool": "run",
        "args": {"command": CASE.reproduce_command, "timeout_seconds": 30},
    },
    {
        "thought": "Reproduced. Next I look for the code that takes durations apart.",
        "tool": "search",
        "args": {"pattern": r"def _?parse_duration", "path": "aniso8601"},
    },
    {
        "thought": 'Durations with unit letters are "prescribed"; date and time part have a function each.',
        "tool": "read",
        "args": {"path": DURATION, "start_line": 119, "end_line": 228},
    },
    {
        "thought": "The branches list the combinations of units one by one, and each list has a gap.",
        "tool": "think",
        "args": {
            "thought": (
                "The time part has branches for H+M+S, H+M, M+S and the single units, none for H+S: PT1H30S falls "
                "through to the branch for hours alone, which takes '1H30' for the hours and fails the isdigit check. "
                "The date part has the same gap for Y+D. One branch each, before the single units, closes both; a "
                "wrong order such as PT30S1H must stay refused, and will: the text before H is then '30S1'."
            )
        },
    },
    {
        "thought": "The regression test comes first. I look for the tests it belongs to.",
        "tool": "search",
        "args": {"pattern": r"def test_parse_duration_prescribed_time", "path": TESTS},
    },
    {
        "thought": "I follow the style of the tests beside it.",
        "tool": "read",
        "args": {"path": TESTS, "start_line": 423, "end_line": 457},
    },
    {
        "thought": "The new test goes between the valid and the refused cases.",
        "tool": "edit",
        "args": {"path": TESTS, "old_text": TEST_ANCHOR, "new_text": REGRESSION_TEST + TEST_ANCHOR},
    },
    {
        "thought": "It has to fail now, otherwise it proves nothing.",
        "tool": "run",
        "args": {"command": REGRESSION_COMMAND, "timeout_seconds": 30},
    },
    {
        "thought": "It fails for the reported reason. Now the time part: hours with seconds.",
        "tool": "edit",
        "args": {
            "path": DURATION,
            "old_text": "    elif minuteidx != -1 and secondidx != -1:\n",
            "new_text": (
                "    elif houridx != -1 and secondidx != -1:\n"
                "        hourstr = timestr[0:houridx]\n"
                "        secondstr = timestr[houridx + 1:-1]\n"
                "    elif minuteidx != -1 and secondidx != -1:\n"
            ),
        },
    },
    {
        "thought": "And the date part: years with days.",
        "tool": "edit",
        "args": {
            "path": DURATION,
            "old_text": "    elif monthidx != -1 and dayidx != -1:\n",
            "new_text": (
                "    elif yearidx != -1 and dayidx != -1:\n"
                "        yearstr = durationstr[1:yearidx]\n"
                "        daystr = durationstr[yearidx + 1:-1]\n"
                "    elif monthidx != -1 and dayidx != -1:\n"
            ),
        },
    },
    {
        "thought": "Do the examples of the report work now?",
        "tool": "run",
        "args": {"command": CASE.reproduce_command, "timeout_seconds": 30},
    },
    {
        "thought": "They do. Last, the whole test suite of the library, the new test included.",
        "tool": "run",
        "args": {"command": CASE.test_command, "timeout_seconds": 120},
    },
    {
        "thought": "Everything passes.",
        "tool": "finish",
        "args": {
            "summary": (
                f"Durations that leave out the middle unit (PT1H30S, P1Y15D) were refused because {DURATION} had no "
                "branch for hours with seconds, nor for years with days. I added one branch to each of the two "
                f"functions and a regression test in {TESTS}, which failed before the change and passes now; units in "
                "the wrong order are still refused. All of the library's tests pass."
            )
        },
    },
)
