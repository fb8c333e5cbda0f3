"""Damaged files, nonsense in params and hostile input: what is tried, and by which command it is counted.

2,025 damages to unfinished training, finished runs and prepared data, here::

    python -m pytest -q -m prove tests/durability -rP    # counts of found and harmless for each kind of damage

Over 1,500 params files with one wrong value, 3,000 with bytes changed at random, every file that ends too early, and
what is made to hurt the reader (tests/test_refusals.py); every form of a scalar against dvc.lock
(tests/test_dialect.py)::

    python -m pytest -q -m "slow or not slow" tests/test_refusals.py tests/test_dialect.py

Data files, archives, links, pipes and devices (tests/data/test_hostile.py), full and read-only disks
(tests/pipeline/test_disk.py), text that acts on a page or on a terminal (tests/audit/test_hostile.py), one case each::

    python -m pytest -q --collect-only -m "slow or not slow" tests/data/test_hostile.py tests/pipeline/test_disk.py \
        tests/audit/test_hostile.py
"""
