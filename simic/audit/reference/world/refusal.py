"""What the reference cannot say anything about."""

from simic.errors import SimicError


class NoReference(SimicError):
    """Settings or networks that were not written a second time: nothing is certified, and nothing is wrong."""
