"""Several processes that train together: ranks, their commands and their shards."""
