"""A repository on its way into a sandbox and back: what is copied, what changed, and what may be written back."""
