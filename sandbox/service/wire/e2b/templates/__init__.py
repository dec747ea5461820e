"""Templates of E2B: built from steps, tagged, and sandboxes started from them."""
