"""Many networks as one computation."""
