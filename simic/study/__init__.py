"""Compute a grid of params × training seeds × policies, each cell of it a run in a folder of its own."""
