"""What happened in a run: typed rows, appended once, never rewritten."""
