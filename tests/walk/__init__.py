"""The way of one call through the files of host and guest, traced on a real run."""
