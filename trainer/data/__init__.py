"""From accepted submissions to packed rows."""
