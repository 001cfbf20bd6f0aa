"""Data sets of tasks: imported into a folder of hashed files, read row by row, fetched from relays piece by piece.

Start with `dataset_row` for the definition of a row, `dataset` for reading and `importing` for writing.
"""
