"""Set what MLflow reads when it is imported; to be imported before it, and by nothing that grows networks alone."""

import os

# Nothing leaves the machine, a server that is gone costs seconds and not minutes, and no bars are drawn between lines.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
