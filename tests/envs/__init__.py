"""Tests of simic.envs."""
