"""Run the core as a pipeline: stages, the engine that runs them, DVC, MLflow, the servers."""
