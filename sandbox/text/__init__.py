"""Turn what a command wrote into text for a reader: terminal screens, excerpts, masked secrets, visible characters."""
