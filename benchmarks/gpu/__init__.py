"""What a machine with a GPU measures in some minutes: `make gpu`, or `python -m benchmarks.gpu` without a set-up."""
