"""The file of a submission: its rows, their Parquet encoding, and the decoding of untrusted files."""
