"""The agent ``dummy``, which tests an installation: it calls every action by a script and checks each answer.

Three further agents call what it cannot: actions whose names are taken, those of old contracts, and ``reject``. No list shows them.
"""
