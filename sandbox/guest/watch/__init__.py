"""What the kernel says of processes, limits and what is left of them."""
