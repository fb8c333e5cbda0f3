"""simic in Python: a classifier that scikit-learn's own checks accept, and grow with a DataFrame."""

import pickle
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits, load_wine
from sklearn.utils.estimator_checks import check_estimator

import simic
from simic.classifier import GrowClassifier
from simic.evaluation.controllers import Controller
from simic.growth import grown_network

WINE = load_wine(as_frame=True)
COUNTRY = WINE.target.map({0: "Barolo", 1: "Grignolino", 2: "Barbera"}).rename("wine")
# What scikit-learn skips or simic does not do, and why.
EXCEPTIONS = {"check_array_api_input": "skipped by scikit-learn unless SCIPY_ARRAY_API is set"}


def mixed() -> pd.DataFrame:
    frame = WINE.data.assign(
        shade=pd.qcut(WINE.data["hue"], 3, labels=["low", "middle", "high"]).astype(object)
    )
    frame.loc[::11, "shade"] = None
    frame.loc[::5, "alcohol"] = np.nan
    return frame


def test_scikit_learn_accepts_the_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each of the fits, which are many, would read every published controller.
    monkeypatch.setattr(Controller, "load", cache(Controller.load))
    checks = check_estimator(GrowClassifier(n=1, epochs=1), on_fail=None, on_skip=None)
    assert {
        check["check_name"]: str(check["exception"])
        for check in checks
        if check["status"] == "failed"
    } == {}
    assert {
        check["check_name"] for check in checks if check["status"] != "passed"
    } <= EXCEPTIONS.keys()
    assert len(checks) > 50


def test_a_frame_with_strings_and_missing_values_comes_back_as_names_of_classes() -> None:
    """Also of a classifier that was pickled, with its network."""
    fitted = GrowClassifier(n=2, epochs=12).fit(mixed(), COUNTRY)
    assert fitted.classes_.tolist() == ["Barbera", "Barolo", "Grignolino"]
    assert fitted.score(mixed(), COUNTRY) > 0.95
    chances = fitted.predict_proba(mixed())
    assert chances.shape == (178, 3) and np.allclose(chances.sum(1), 1)
    assert (fitted.classes_[chances.argmax(1)] == fitted.predict(mixed())).all()
    assert len(fitted.predict(mixed()[:9].assign(shade="purple"))) == 9
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(mixed().drop(columns="shade"))
    again = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - our own
    assert np.array_equal(again.predict_proba(mixed()), chances)


def test_images_and_settings_of_torch_that_stay_as_they_were() -> None:
    x, y = load_digits(return_X_y=True)
    before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    classifier = GrowClassifier(n=2, epochs=2, host="cnn/baseline").fit(
        x[:300].reshape(-1, 8, 8), y[:300]
    )
    assert (torch.get_num_threads(), torch.get_deterministic_debug_mode()) == before
    assert classifier.predict(x[:7].reshape(-1, 8, 8)).shape == (7,)
    with pytest.raises(ValueError, match=r"must be numbers .*as in training"):
        classifier.predict(x[:7].reshape(-1, 8, 4))


def test_what_cannot_be_used_is_a_value_error_in_one_line() -> None:
    dates = WINE.data.assign(when=pd.date_range("2024-01-01", periods=178))
    with pytest.raises(ValueError, match="column 'when': holds dates") as caught:
        GrowClassifier().fit(dates, COUNTRY)
    assert "\n" not in str(caught.value)


def seeded(**settings: Any) -> GrowClassifier:
    """Fit sixty rows for an epoch, without a controller."""
    x = torch.arange(60.0)[:, None].sin().requires_grad_()
    arguments = {"n": 1, "policy": "static", "epochs": 1} | settings
    return GrowClassifier(**arguments).fit(x, torch.tensor([0, 1] * 30))


def test_numbers_are_given_as_scikit_learn_gives_them() -> None:
    """And samples as torch has them."""
    x = np.linspace(0, 1, 5)[:, None]
    drawn = np.random.RandomState(3).randint(2**31 - 1)
    expected = seeded(random_state=int(drawn)).predict_proba(x)
    for state in (np.int64(drawn), np.random.RandomState(3)):
        fitted = seeded(random_state=state, n=np.int8(1), epochs=np.int64(1))
        assert np.array_equal(fitted.predict_proba(x), expected)
    np.random.seed(3)
    assert np.array_equal(seeded(random_state=None).predict_proba(x), expected)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"random_state": -1}, "random_state = -1: must be a whole number from 0 to 2147483647"),
        ({"random_state": "one"}, "random_state = 'one': must be a whole number from 0"),
        ({"epochs": 0}, "epochs = 0: must be a whole number from 1 to 100000"),
        ({"epochs": 2.0}, r"epochs = 2\.0: must be a whole number"),
        ({"n": -3}, "n = -3: must be a whole number from 1"),
        ({"n": True}, "n = True: must be a whole number"),
    ],
)
def test_numbers_out_of_range_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        seeded(**settings)


def test_tensors_that_cannot_be_arrays_are_value_errors_as_scikit_learn_has_them() -> None:
    x = torch.zeros(60, 2)
    y = torch.arange(60) % 2
    empty = torch.empty(60, 2, device="meta")
    fitted = seeded()
    for call in (
        lambda: GrowClassifier().fit(empty, y),
        lambda: GrowClassifier().fit(x, empty[:, 0]),
        lambda: fitted.predict(empty),
        lambda: fitted.score(empty, y),
    ):
        with pytest.raises(ValueError, match="cannot be made an array") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_grow_saves_what_it_prints_and_predicts_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = mixed().assign(wine=COUNTRY)
    grown = simic.grow(frame, target="wine", out=tmp_path / "grown", n=2, epochs=8)
    printed = capsys.readouterr().out
    assert "| gradient boosting " in printed and "| grown network " in printed
    files = {path.name for path in (tmp_path / "grown").iterdir()}
    assert {"predict.py", "network.pt2", "README.md"} <= files
    # On these data something plainer is as good.
    assert "recommended" in files and "Use the grown network" not in printed
    assert grown.recommended is not None
    assert (grown.recommended.predict(mixed()) == COUNTRY).mean() > 0.9
    assert (grown.predict(mixed()) == COUNTRY).mean() > 0.9
    # The program takes longer than the rest.
    monkeypatch.setattr(grown_network, "_program", lambda network: b"")
    simic.grow(frame, target="wine", out=tmp_path / "quiet", n=1, epochs=2, verbose=False)
    assert capsys.readouterr().out == ""
