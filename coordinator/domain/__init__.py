"""The coordinator's rules, as functions of a repository, the pool's parameters and a given time."""
