"""``gamebox serve``: many people's sandboxes behind one address. Needs the extra ``server``; ``import sandbox`` never loads it."""
