"""HTTP to a service: its address, requests that are sent again, errors, events and WebSockets."""
