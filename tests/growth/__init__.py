"""Tests of simic.growth."""
