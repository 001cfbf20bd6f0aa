"""Benchmarks: `make bench NAME=x` runs `benchmarks/x.py`, which writes build/bench/x.json."""
