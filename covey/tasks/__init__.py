"""Data sets of tasks: imported into a folder of hashed files, read row by row, fetched from relays shard by shard.

Start at `rows` for what a row is, `dataset` for reading, `importing` for writing.
"""
