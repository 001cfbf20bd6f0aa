"""The coordinator's HTTP API: one module for each kind of caller."""
