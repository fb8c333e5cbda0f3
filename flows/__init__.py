"""Wire the pipeline into Prefect: no arithmetic here."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in simic/__main__.py
