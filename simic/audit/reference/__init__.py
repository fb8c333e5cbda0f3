"""A second, slow implementation in float64, one row at a time, that shares no code with what it checks."""
