"""What happened in a run: columns and rows, one file for each iteration, never rewritten."""
