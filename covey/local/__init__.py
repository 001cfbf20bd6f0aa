"""A pool on one machine: the folder with its keys and settings, its opening on chain, and its processes."""
