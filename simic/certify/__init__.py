"""A second implementation in float64 that shares no code with what it checks; small trainings that try the code."""
