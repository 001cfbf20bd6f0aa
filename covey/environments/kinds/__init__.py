"""Kinds of environment. Each kind has one `TaskSource`, and the modules that its grading needs."""
