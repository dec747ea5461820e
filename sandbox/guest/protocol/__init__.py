"""What passes over the pipe. The host imports nothing else of the guest."""
