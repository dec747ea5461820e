"""What the kernel reports: processes, sockets, counters and limits; and what follows when the sandbox runs out of something.

This folder reads and reports. Only ``disk`` and ``lifetime`` act: they stop commands, or the sandbox.
"""
