"""Record a run: columns and rows, one file for each iteration, never rewritten."""
