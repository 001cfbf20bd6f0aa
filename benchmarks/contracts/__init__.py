"""Benchmark of the Solidity contracts."""
