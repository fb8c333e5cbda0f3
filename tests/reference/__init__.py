"""A second implementation in float64 that shares no code with what it checks: the oracle of the tests."""
