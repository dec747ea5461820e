"""The network of a remote sandbox: rules, connections as they end, and ports that lead here."""
