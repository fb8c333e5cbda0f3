"""The pipeline around the core: stages, the engine that runs them, DVC, MLflow, the servers."""
