"""The host's end of the pipe to a guest: frames, requests under way, streams, reconnecting after a cut."""
