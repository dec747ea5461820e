"""Gamebox on other engines: each in a root file system of Debian's packages, started beside the machine's own one. `make engines`."""
