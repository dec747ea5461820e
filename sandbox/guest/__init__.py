"""The guest: what runs inside a sandbox. Standard library only; imports nothing above it, and itself only relatively."""
