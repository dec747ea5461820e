"""tested_tool and tested_client are suites of their own, as users of the pytest plugin have them; tests here run them."""

collect_ignore = ["tested_tool", "tested_client"]
