"""The faults, a file for each family."""

from simic.selftest.catalogue import data, evaluation, maths, plumbing, provenance, resume

ALL = (
    *maths.FAULTS,
    *plumbing.FAULTS,
    *data.FAULTS,
    *evaluation.FAULTS,
    *provenance.FAULTS,
    *resume.FAULTS,
)
BY_ID = {fault.id: fault for fault in ALL}
