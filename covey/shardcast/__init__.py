"""Policies on their way: manifests and shards from the origin through relays to clients."""
