"""Run the core as a pipeline: stages, the engine that runs them, DVC, MLflow, the servers."""

import os

# Read when mlflow is imported. Nothing leaves the machine, and a server that is gone costs seconds, not minutes.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
