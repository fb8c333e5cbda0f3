"""A task of one's own: two interleaved half circles, to be told apart.

cp examples/extensions/moons.py extensions/
simic run -S 'extensions=[moons]' -S prepare.task=moons -S train.host.family=mlp -S train.actions={}
"""

from pathlib import Path

import torch
from sklearn.datasets import make_moons

from simic.data.sources import Source
from simic.data.tasks import task
from simic.params import Prepare

SAMPLES, NOISE = 2000, 0.2


@task("moons")
def moons(params: Prepare, rng_seed: int, data_dir: Path) -> Source:
    """Vectors [N, 2] and labels [N]; the same for the same seed. Splits and scales are simic's business."""
    x, y = make_moons(SAMPLES, noise=NOISE, random_state=rng_seed)
    return Source(
        name=f"two moons, noise {NOISE}",
        sha256="",  # of the file, where there is one
        licence="none needed: generated",
        x=torch.tensor(x, dtype=torch.float32),
        y=torch.tensor(y),
    )
