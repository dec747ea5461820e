"""Sandboxes that outlive their orchestrator: labels, owners, attaching, listing, removing what is left over."""
