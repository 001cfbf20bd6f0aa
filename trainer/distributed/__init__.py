"""Distributed training: ranks, their commands and their shards."""
