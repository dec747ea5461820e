"""tested_tool is a suite of its own, as a user of the pytest plugin has one; test_pytest_plugin.py runs it."""

collect_ignore = ["tested_tool"]
