"""The audit of a run: checks on its recorded telemetry, figures, report."""
