"""Talk with commands that run: type into them, follow their output, wait for what they do."""
