"""The worker: claims tasks, generates rollouts, proves and submits them."""
