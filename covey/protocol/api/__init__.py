"""Bodies of the coordinator's HTTP API, one module for each caller."""
