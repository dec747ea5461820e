"""The demo: a real library with a real bug, and the steps by which a scripted brain fixes it."""
