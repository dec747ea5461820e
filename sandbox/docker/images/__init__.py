"""Images and the guest's runtime: what they are made of, and making them where they are missing."""
