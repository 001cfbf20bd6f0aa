"""`covey doctor`: what a machine has, what a role needs, and how to fix what is missing."""
