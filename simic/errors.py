"""The one error a user can cause: printed as a single line, exit code 2, no traceback."""

EXIT_REFUSED = 2
EXIT_INTERRUPTED = 3  # training was asked to stop, and can go on


class SimicError(Exception):
    """Bad input or a refused operation; the message names the thing, its value and what is allowed."""


class DecisionFault(SimicError):
    """The masks leave no choice, the policy's logits are not finite, or an action was played that the masks forbid."""
