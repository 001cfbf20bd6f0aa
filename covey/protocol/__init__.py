"""Rules that all parties must agree on, as pure types and functions without I/O or a clock."""
