"""Wire the pipeline into Prefect: no arithmetic here."""
