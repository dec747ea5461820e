"""The files of a sandbox as a whole: scanning, fetching, comparing and restoring them."""
