"""The sandbox's way out and in: a proxy, names and tunnels, all through the pipe."""
