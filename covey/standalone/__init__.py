"""A run on one machine: generator, grader and learner, without a chain or a coordinator."""
