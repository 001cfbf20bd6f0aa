"""Kinds of environment: each module has one `TaskSource` and what it needs to grade."""
