"""An independent, slow reference of what a run does: float64, one host and one step at a time, nothing of simic's own."""
