"""The sandbox's way out and in: a proxy, names of services and tunnels, all through the pipe."""
