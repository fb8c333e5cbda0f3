"""An independent, slow reference of what a run does: float64, one host and one step at a time, no code of simic's."""
