"""The host's end of the pipe to a guest: frames, requests in flight, streams, attaching again after a cut."""
