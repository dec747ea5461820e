"""Builds of images: steps that run in sandboxes, with a cache of layers. Never ``docker build``.

``steps``       what a build does: ``Plan`` of ``Run``, ``Copy``, ``Env``, ``Workdir``, ``User``. Plain values, no I/O.
``dockerfile``  ``parse_dockerfile`` turns a Dockerfile into a ``Plan``.
``archives``    ``ArchiveStore`` keeps the archives that ``Copy`` takes its files from, by the hash of their content.
``build``       ``Build(plan, ...).run()`` makes the image; ``cancel()`` ends it. ``BuildLimits``, ``LogEntry``, ``BuiltImage``.
``layers``      ``ImageStore`` of one owner: find, name, list, bytes used, remove and prune what was built.

An owner is a text, as in the id of a tenant; "" is this host's own user. Images of one owner cannot be used, seen or replaced by
another.
"""
