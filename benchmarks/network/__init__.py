"""The network of a sandbox, through the pipe, beside a Docker bridge."""
