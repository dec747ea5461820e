"""Trajectories: a run in a file or another format, replayed, and compared with another run."""
