"""Define the error that a request can cause: a status and one sentence."""

from simic.errors import SimicError


class Refusal(SimicError):
    """A request that is not answered; ``status`` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
