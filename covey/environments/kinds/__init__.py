"""Kinds of environment: each has one `TaskSource`; the modules around it hold what it needs to grade."""
