"""Carry out actions: on the host, over a pipe to a guest, from threads and from asyncio."""
