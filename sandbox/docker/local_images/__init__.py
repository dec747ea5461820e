"""Images of this host's own user: described as values, built like any others, and moved between hosts as archives.

``image``            ``Image``, the value: a base or a Dockerfile, and steps.
``contexts``         packs the files that it copies, the same bytes for the same content.
``building``         builds it: its network, certificates and the indexes of packages.
``package_sources``  what this host's own package tools are configured with.
``setups``           what ``--setup`` installs once for ``dependency_files`` and keeps as an image.
``names``            names of images on the engine, and which of them may be given to something else.
"""
