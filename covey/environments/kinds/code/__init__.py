"""Environments of kind `code`: answers are programs, which run against hidden tests."""
