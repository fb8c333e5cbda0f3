"""1,155 damages to unfinished training, finished runs and prepared data; counts of found and harmless for each kind::

    python -m pytest -q -m prove tests/durability -rP

Nonsense in params: tests/test_params.py. Hostile data, full disks, text that acts on a page or
a terminal: tests/data/test_hostile.py, tests/pipeline/test_disturbed.py, tests/audit/test_hostile.py.
"""
