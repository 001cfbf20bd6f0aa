"""Benchmarks: `make bench NAME=<name>` runs one and writes build/bench/<name>.json; `make bench` lists them."""
