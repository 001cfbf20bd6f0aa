"""Request and response bodies of the coordinator's HTTP API, one module per kind of caller."""
