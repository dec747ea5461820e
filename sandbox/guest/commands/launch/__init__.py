"""Start the processes of commands: what the launcher is told, and what it says."""
