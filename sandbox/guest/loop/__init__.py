"""The event loop, the guest's end of the pipe, and requests from their arrival to their reply."""
