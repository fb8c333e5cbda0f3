"""The encoder of pictures."""

import pytest
import torch

from simic.agent.image_encoder import ImageEncoder
from simic.agent.initialization import initialize
from simic.agent.spec import Image


@pytest.mark.parametrize("side", [8, 9, 12, 35, 36, 84, 210])
def test_pictures_of_any_size_are_encoded(side: int) -> None:
    encoder = ImageEncoder(Image((side, side + 3, 3), "last", 255.0), 16)
    assert encoder(torch.zeros(2, 5, side * (side + 3) * 3)).shape == (2, 5, 16)


def test_channels_first_or_last_make_no_difference_and_a_full_pixel_is_1() -> None:
    picture = torch.rand(4, 12, 16, 3)
    last = ImageEncoder(Image((12, 16, 3), "last", 255.0), 16)
    first = ImageEncoder(Image((3, 12, 16), "first", 1.0), 16)
    for encoder in (last, first):
        initialize(encoder, {"": 1.0}, 1)
    one = last(picture.flatten(1) * 255.0)
    other = first(picture.movedim(-1, 1).flatten(1))
    torch.testing.assert_close(one, other)
    assert one.std() > 0


def test_first_weights_of_a_convolution_are_orthogonal() -> None:
    encoder = ImageEncoder(Image((12, 16, 3), "last", 255.0), 16)
    initialize(encoder, {"": 2.0}, 1)
    rows = encoder.layers[1].weight.flatten(1)
    torch.testing.assert_close(rows @ rows.t(), 4.0 * torch.eye(len(rows)), rtol=0, atol=1e-5)
