"""Environments of kind `verifiers`: tasksets of the package verifiers."""
