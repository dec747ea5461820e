"""Gamebox on other engines: each in a root file system of Debian's packages, beside the machine's own. `make engines`."""
