"""What a role reaches outside its process: the chain, the coordinator, the pool's policies and data sets."""
