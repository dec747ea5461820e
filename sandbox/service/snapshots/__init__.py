"""Files of sandboxes that outlive them: snapshots, and sandboxes that are stopped and start again with their files."""
