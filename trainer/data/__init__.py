"""Training data: from accepted submissions to packed rows."""
