"""The review of every run: checks on its recorded telemetry, figures, report."""
