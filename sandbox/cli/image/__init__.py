"""The commands ``gamebox image``: build images, list and remove them, and move them between machines."""
