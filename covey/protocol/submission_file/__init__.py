"""The file of a submission: its rows, their Parquet encoding, and decoding what strangers wrote."""
