"""Environments of kind `code`: answers are programs that run against hidden tests."""
