"""Open the network of a folder, or the champion of a registered model, with what lies beside it."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simic.data.own.contract import REFERENCE
from simic.errors import SimicError
from simic.evaluation.export_best import PROMISE
from simic.pipeline.paths import Workspace
from simic.serving.networks import NetworkModel
from simic.serving.sources import find_source, loading


@dataclass(frozen=True)
class OpenNetwork:
    """A network in a folder for as long as it is open."""

    folder: Path
    model: NetworkModel

    @property
    def reference(self) -> pd.DataFrame:
        """Read the sample of training rows."""
        # Whoever grew the network may have wanted no rows beside it.
        path = self.folder / REFERENCE
        if not path.exists():
            raise SimicError(f"{path}: no such file; grow the network without --no-reference")
        return pd.read_parquet(path)

    @property
    def promise(self) -> dict[str, Any]:
        """Read which model it is, its accuracy on the test split, and how many rows that has."""
        path = self.folder / PROMISE
        if not path.exists():
            raise SimicError(f"{path}: no such file; simic grow writes it beside a network")
        return json.loads(path.read_bytes())


@contextmanager
def opened(workspace: Workspace, model: str) -> Iterator[OpenNetwork]:
    """Open a network for as long as the block lasts.

    Args:
        workspace: Says where MLflow's store is.
        model: A folder of ``simic grow``, or a registered model, whose champion is meant.

    Raises:
        SimicError: There is neither, or MLflow does not answer.
    """
    # The same names, versions and files as the server has.
    source = find_source(model, workspace)
    version = source.newest()
    with tempfile.TemporaryDirectory(prefix="simic-network-") as scratch:
        # A folder is used where it is; a version is downloaded.
        folder = source.fetch(version, Path(scratch))
        if any(folder.rglob("policy.pt2")):
            raise SimicError(f"{version}: is a policy; only networks are watched and retrained")
        with loading(version):
            network = NetworkModel(folder, version)
        yield OpenNetwork(folder, network)
