"""Environments of kind `math`: answers are compared as mathematical values."""
