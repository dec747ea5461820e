"""Images and the guest's runtime volume: what they are made of, and making missing ones."""
