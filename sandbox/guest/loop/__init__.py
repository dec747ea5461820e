"""The event loop, the pipe's inner end, and requests from their arrival to their answer."""
