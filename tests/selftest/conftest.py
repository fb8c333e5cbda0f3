"""Clean runs of a pipeline that is shorter still, which tests of planted faults start from."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from simic.selftest import setting
from simic.selftest.runner import Laboratory


@pytest.fixture(scope="session")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    """Two clean runs, once interrupted: the second one is who files are taken from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(setting.TREE["train"], "iterations", 6)
        patch.setitem(setting.TREE["train"], "validate_every", 3)
        found = Laboratory(tmp_path_factory.mktemp("laboratory"), (1, 2))
        with closing(found):
            for seed in found.seeds:
                found.run_clean(seed)
            yield found
