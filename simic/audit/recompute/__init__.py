"""Recomputation of a run's records from its files in numpy, without the code that made them."""
