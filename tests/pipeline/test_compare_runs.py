"""Two runs are equal, or it is said where they part and what differs."""

import shutil
from pathlib import Path

from simic.pipeline.paths import Workspace
from tests.conftest import Simic
from tests.pipeline.small_suite import train, tree


def test_a_run_is_equal_to_itself_and_of_another_the_iteration_and_the_param_are_named(
    suite_run: Workspace, simic: Simic, tmp_path: Path
) -> None:
    """The learning rate of the agent is first used in the second iteration."""
    shutil.copytree(suite_run.prepared, Workspace(tmp_path).prepared)
    train(tree("train.ppo.learning_rate=0.002"), Workspace(tmp_path))
    code, out, _ = simic("diff", suite_run.root, suite_run.root)
    assert code == 0 and out.startswith("equal after each of the 3 iterations that both have\nparams, data, code")
    code, out, _ = simic("diff", suite_run.root, tmp_path)
    lines = out.splitlines()
    assert code == 1 and lines[0] == "equal up to iteration 0, not after iteration 1"
    assert any(line.startswith("after iteration 3: ") and "tensors differ: " in line for line in lines)
    assert lines[-1] == "train.ppo.learning_rate: 0.0015 → 0.002"
    assert "give the folder of a run that was trained" in simic.refuses("diff", suite_run.root, tmp_path / "data")
