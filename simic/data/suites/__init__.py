"""Suites: distributions of tasks of one input shape, and the bank of instances that ``prepare`` draws from one."""

# The shipped one is registered before anything of a user's, whichever module is imported first.
from simic.data.suites import tables_suite  # noqa: F401
