"""A role's access to the network: the chain, the coordinator, and the pool's policies and data sets."""
