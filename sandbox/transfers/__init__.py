"""Copy files and folders between the host and a sandbox."""
