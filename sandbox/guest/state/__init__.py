"""The files of a sandbox as a whole: scanned, fetched, compared, restored."""
