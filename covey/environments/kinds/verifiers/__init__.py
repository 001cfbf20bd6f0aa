"""Environments of kind `verifiers`: tasks from tasksets of the package verifiers."""
