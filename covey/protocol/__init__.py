"""What all parties agree on: pure types and functions, no I/O, no clock."""
