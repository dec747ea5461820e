"""Opening web pages as the sandbox's user, in a program of its own."""
