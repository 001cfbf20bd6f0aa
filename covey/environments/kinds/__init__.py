"""Kinds of environment. Each kind has one `TaskSource`, and modules next to it that it needs for grading."""
