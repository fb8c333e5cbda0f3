"""Hosts, seeds, their lifecycle, and the population that trains them together."""
