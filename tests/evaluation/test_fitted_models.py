"""A model of scikit-learn's answers as a torch program as it does by itself."""

import numpy as np
import pytest
import torch

from simic.data.raw_inputs import InputColumn
from simic.evaluation import floors
from simic.evaluation.fitted_models import FittedModel, LinearScores
from simic.growth.grown_network import FittedStructure

LEVELS = tuple(f"level {k}" for k in range(40))
COLUMNS = (
    InputColumn(name="number"),
    InputColumn(name="few", levels=LEVELS[:4], other=True, missing=True),
    InputColumn(name="many", levels=LEVELS, other=True, missing=True),
    InputColumn(name="wave", missing=True),
    InputColumn(name="more", levels=LEVELS),
)


def structure(classes: int) -> FittedStructure:
    return FittedStructure(model="a model", input_shape=(1, 1, 5), classes=classes)


@pytest.mark.parametrize("classes", [2, 3])
def test_boosting_is_its_program_for_numbers_levels_new_ones_and_missing_values(
    classes: int,
) -> None:
    """Test rows have levels that no training row has: one of few, some of many."""
    draws = np.random.default_rng(classes)
    samples = {}
    for split in ("train", "val", "test"):
        few = draws.integers(0, 4 if split == "train" else 5, 400)
        many = draws.integers(0, 30 if split == "train" else 41, 400)
        wave = draws.normal(size=400)
        raw = np.stack([draws.normal(size=400), few, many, wave, draws.integers(0, 40, 400)], 1)
        raw[draws.random(raw.shape) < 0.1] = np.nan
        raw[:, 0] = np.nan_to_num(raw[:, 0])
        y = np.minimum((few % 2) * (wave > 0) + (many % 3 == 0), classes - 1)
        samples[split] = floors.Samples(raw.astype(np.float32), raw, y.astype(np.int64))
    inputs = floors.RawInputs(
        layout="table", shape=(5,), columns=COLUMNS, mean=(), std=(), classes=("a", "b", "c")
    )
    found = floors._fit_boosting(samples, structure(classes).model_copy(update={"inputs": inputs}))
    assert found.model is not None and found.correct.mean() > 0.6
    raw, y = samples["test"].raw, samples["test"].y
    assert raw is not None
    with torch.no_grad():
        chances = found.model(torch.from_numpy(raw)).softmax(1).numpy()
    np.testing.assert_allclose(chances, found.chances["test"], atol=1e-12)
    assert np.array_equal(chances.argmax(1) == y, found.correct)


def test_a_line_is_its_program_also_without_some_class() -> None:
    draws = np.random.default_rng(3)
    x = draws.normal(size=(300, 5)).astype(np.float32)
    labels = np.array([0, 2, 3])
    y = labels[(x[:, 0] > 0).astype(int) + (x[:, 1] > 0.5)]
    for part in (y, np.where(y == 3, 2, y)):
        model = floors.LogisticRegression().fit(x, part)
        program = FittedModel(structure(5), LinearScores(model), model.classes_, True)
        with torch.no_grad():
            chances = program(torch.from_numpy(x[:, None, None])).softmax(1).numpy()
        np.testing.assert_allclose(chances[:, model.classes_], model.predict_proba(x), atol=1e-6)
        assert chances[:, [1, 4]].max() == 0


def test_a_program_with_other_answers_is_refused() -> None:
    """As where scikit-learn keeps its models otherwise than here."""
    x = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    y = (x[:, 0] > 0).astype(np.int64)
    model = floors.LogisticRegression().fit(x, y)
    program = FittedModel(structure(2), LinearScores(model), model.classes_, True)
    floors._refuse_other_answers(program, x, model.predict(x) == y, y)
    program.scores.get_buffer("weight").neg_()
    with pytest.raises(floors.SimicError, match="a model: cannot be saved as its scores were"):
        floors._refuse_other_answers(program, x, model.predict(x) == y, y)
