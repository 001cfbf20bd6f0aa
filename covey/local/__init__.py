"""A pool on one machine: the folder of its keys and settings, its opening on chain, its processes."""
