"""The faults, a file for each family."""

from tests.faults.catalogue import data, evaluation, maths, plumbing, provenance, resume, scale

ALL = (
    *maths.FAULTS,
    *plumbing.FAULTS,
    *data.FAULTS,
    *evaluation.FAULTS,
    *provenance.FAULTS,
    *resume.FAULTS,
    *scale.FAULTS,
)
BY_ID = {fault.id: fault for fault in ALL}
