"""The faults, a file for each family."""

from tests.faults.catalogue import data, evaluation, maths, plumbing, provenance, real, resume, scale
from tests.faults.fault import planted

ALL = (
    *planted("maths", maths.FAULTS),
    *planted("plumbing", plumbing.FAULTS),
    *planted("data", data.FAULTS),
    *planted("evaluation", evaluation.FAULTS),
    *planted("provenance", provenance.FAULTS),
    *planted("resume", resume.FAULTS),
    *planted("scale", scale.FAULTS),
    *planted("real", real.FAULTS),
)
BY_ID = {fault.id: fault for fault in ALL}
