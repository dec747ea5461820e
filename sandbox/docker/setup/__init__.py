"""Install what a sandbox needs: Docker Engine, the images and the guest's runtime. ``import sandbox`` never loads it."""
