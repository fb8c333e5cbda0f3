"""Suites: distributions of tasks of one input shape, and the bank of instances that ``prepare`` draws from one."""

# The shipped ones are registered before anything of a user's, whichever module is imported first.
from simic.data.suites import patches, tables  # noqa: F401
