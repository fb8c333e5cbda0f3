"""Prefect wiring: no arithmetic here."""
