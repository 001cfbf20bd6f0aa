"""Data sets of tasks: imported into a folder of hashed files, read row by row, fetched from relays shard by shard.

Start with `dataset_row` for the definition of a row, `dataset` for reading and `importing` for writing.
"""
