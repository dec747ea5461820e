"""The protocol of the pipe, and what else both ends must agree on. The host imports nothing else of the guest."""
