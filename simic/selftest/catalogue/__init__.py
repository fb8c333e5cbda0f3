"""The faults, a file for each family."""

from simic.selftest.catalogue import data, evaluation, maths, plumbing, provenance, resume
from simic.selftest.fault import Fault

ALL: tuple[Fault, ...] = (
    *maths.FAULTS,
    *plumbing.FAULTS,
    *data.FAULTS,
    *evaluation.FAULTS,
    *provenance.FAULTS,
    *resume.FAULTS,
)
BY_ID: dict[str, Fault] = {fault.id: fault for fault in ALL}
