"""Suites: distributions of tasks of one input shape, and the bank of instances that ``prepare`` draws from one."""
