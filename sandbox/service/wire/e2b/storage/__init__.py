"""What outlives sandboxes in the dialect of E2B: snapshots, forks, and volumes with their content."""
