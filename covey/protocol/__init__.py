"""Rules that all parties must agree on, as types and pure functions that use neither I/O nor a clock."""
