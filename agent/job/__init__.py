"""One run of an agent on a copy of a repository, from its options to the changes it leaves."""
