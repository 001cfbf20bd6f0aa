"""Jobs and the broker that starts them."""
