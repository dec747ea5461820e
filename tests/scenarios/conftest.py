"""tested_tool and client_under_test are suites of their own, as users of the pytest plugin have them; tests here run them."""

collect_ignore = ["tested_tool", "client_under_test"]
