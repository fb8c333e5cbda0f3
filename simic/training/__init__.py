"""The training loop of the controller, its checkpoints and its way to stop."""
