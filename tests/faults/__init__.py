"""The self-test of the audit: faults planted in the pipeline on purpose, and which of them the audit finds."""
