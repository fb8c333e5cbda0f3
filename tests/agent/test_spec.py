"""What an environment tells the agent is checked before it is believed."""

import pytest
import torch

from simic.agent.spec import ActionSpec, Head
from simic.errors import SimicError

SPEC = ActionSpec(
    (Head("op", 2), Head("slot", 3, "op"), Head("kind", 4, "slot")), ((True, False, False), (True, True, True))
)


def masks(**changed: torch.Tensor) -> dict[str, torch.Tensor]:
    shapes = {"op": (5, 2), "slot": (5, 2, 3), "kind": (5, 3, 4)}
    return {name: torch.ones(shape, dtype=torch.bool) for name, shape in shapes.items()} | changed


def test_a_mask_cannot_hang_on_a_later_or_unused_choice() -> None:
    with pytest.raises(ValueError, match="no op is chosen before it"):
        ActionSpec((Head("op", 2, "op"),), ((True,), (True,)))
    with pytest.raises(ValueError, match="'kind' is masked by the slot, but some op uses it without"):
        ActionSpec(SPEC.heads, ((True, True, True), (True, False, True)))


def test_relevance_has_a_row_for_every_op() -> None:
    with pytest.raises(ValueError, match="relevance must have 2 rows of 2 heads"):
        ActionSpec((Head("op", 2), Head("slot", 3)), ((True, True),))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"op": torch.ones(5, 1, dtype=torch.bool)}, r"mask 'op' is bool \[5, 1\]: must be bool \[5, 2\]"),
        ({"slot": torch.ones(5, 3, dtype=torch.bool)}, r"mask 'slot' is bool \[5, 3\]: must be bool \[5, 2, 3\]"),
        ({"kind": torch.ones(5, 3, 4)}, r"mask 'kind' is float32 \[5, 3, 4\]: must be bool \[5, 3, 4\]"),
        ({"king": torch.ones(5, 1)}, "mask 'king': there is no such head; the heads are op, slot, kind"),
    ],
)
def test_any_other_would_be_broadcast_and_is_refused(changed: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(SimicError, match=message):
        SPEC.check_masks(masks(**changed), 5)
