"""One container: what it is created with, its streams, its files, its end."""
