"""The faults, a file for each family."""

from importlib import import_module

from tests.faults.fault import FAMILIES, planted

ALL = tuple(
    fault
    for family in FAMILIES
    for fault in planted(family, import_module(f"{__name__}.{family}").FAULTS)
)
BY_ID = {fault.id: fault for fault in ALL}
