"""The command ``gamebox``: its options, help and messages."""
