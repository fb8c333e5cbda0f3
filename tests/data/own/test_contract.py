"""What a network learned from is described, and what it is sent later is compared with that."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simic.data.own import predict
from simic.data.own.contract import REFERENCE, Contract, decile_bins
from simic.data.own.own_data import OwnData, own_data
from simic.data.own.readers import of_python
from simic.errors import SimicError
from simic.growth import load_grown
from tests.conftest import Simic

ROWS = 400


def frame() -> pd.DataFrame:
    draws = np.random.default_rng(2)
    rows = pd.DataFrame({"a": draws.normal(size=ROWS), "b": draws.normal(size=ROWS)})
    rows["flag"] = draws.random(ROWS) < 0.7
    rows["shade"] = draws.choice(["red", "blue", None], ROWS)
    # Too rare to have a feature, and seen in training all the same, since rows are in order below.
    rows.loc[:1, "shade"] = "teal"
    rows.loc[::10, "a"] = np.nan
    return rows.assign(same=1, label=np.where(rows["a"].fillna(0) > 0, "10", "9").astype(int))


def prepared(rows: pd.DataFrame) -> OwnData:
    """All but the last 80 rows are for training."""
    part = (np.arange(len(rows)) >= len(rows) - 80).astype(int)
    return own_data(replace(of_python(rows, target="label"), part=part), {"val": 0.2}, 1)


def test_the_contract_is_what_numpy_and_pandas_count_in_the_training_rows() -> None:
    rows = frame()
    data = prepared(rows)
    contract = data.contract
    assert contract is not None
    train = rows.iloc[:-80]
    by_name = {column.name: column for column in contract.columns}
    a = train["a"]
    assert (by_name["a"].low, by_name["a"].high) == (a.min(), a.max())
    assert by_name["a"].missing_share == pytest.approx(a.isna().mean())
    np.testing.assert_allclose(by_name["a"].quantiles, np.nanpercentile(a, range(0, 101, 10)))
    assert sum(by_name["a"].decile_shares) == pytest.approx(a.notna().mean())
    # A flag has two values, and all of its rows are in two of ten bins.
    shares = [share for share in by_name["flag"].decile_shares if share]
    assert shares == pytest.approx(sorted(train["flag"].value_counts(normalize=True)))
    assert by_name["shade"].levels == ("blue", "red", "teal")
    assert by_name["shade"].shares["teal"] == pytest.approx(2 / len(train))
    assert contract.ignored == ("same",) and contract.label == "label"
    # In the order of the network's outputs, which is that of numbers.
    assert contract.classes == ("9", "10") == tuple(contract.class_shares)
    assert contract.class_shares["10"] == pytest.approx((train["label"] == 10).mean())
    assert contract.rows == len(train) and contract.data_sha256


def test_values_that_equal_a_decile_are_below_it() -> None:
    deciles = [0, *range(1, 10), 10]
    assert decile_bins(np.array([-5, 1, 1.1, 9, 9.1, 50]), deciles).tolist() == [0, 0, 1, 8, 9, 9]


def test_the_reference_is_training_rows_in_order() -> None:
    rows = pd.concat([frame()] * 8, ignore_index=True)
    rows["a"] = np.arange(len(rows)) / 7
    data = prepared(rows)
    assert data.reference is not None
    assert len(data.reference) == 2000 and [*data.reference] == ["a", "b", "flag", "shade", "label"]
    assert data.reference["a"].is_monotonic_increasing
    places = (data.reference["a"] * 7).round().astype(int)
    expected = rows.loc[places]
    assert (data.reference["label"].to_numpy() == expected["label"].astype(str).to_numpy()).all()
    assert data.reference["flag"].tolist() == expected["flag"].astype(float).tolist()
    assert (data.reference["shade"].fillna("") == expected["shade"].fillna("").to_numpy()).all()
    assert data.reference.equals(prepared(rows).reference)


def rows_of(text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text))


def checked(text: str) -> predict.Counts:
    data = prepared(frame())
    assert data.contract is not None
    columns = data.inputs.model_dump()["columns"]
    return predict.check(rows_of(text), columns, data.contract.model_dump())[1]


def test_what_training_did_not_have_is_counted_by_column() -> None:
    """A level that was too rare for a feature was there; a column that training left out may be sent."""
    text = """a,b, flag,shade,same,label
99,0,True,teal,5,9
-99,0,False,mauve,5,9
,0,True,,5,9
0,0,True,red,5,9"""
    counts = [("a", "out of range", 2), ("a", "missing", 1)]
    assert checked(text) == [*counts, ("shade", "unseen level", 1), ("shade", "missing", 1)]
    assert checked("shade,flag,b,a\nred,1,0,0") == []


def test_a_column_too_few_or_too_many_is_one_message() -> None:
    with pytest.raises(ValueError, match="column 'flag': not in the data; there are a, b, shade"):
        checked("a,b,shade\n0,0,red")
    words = "column 'hue': was not in training; there were a, b, flag, shade, same, label"
    with pytest.raises(ValueError, match=words):
        checked("a,b,shade,flag,hue\n0,0,red,1,1")


@pytest.mark.parametrize("option", ["--reference", "--no-reference"])
def test_grow_writes_it_beside_the_network_and_predict_heeds_it(
    tmp_path: Path, simic: Simic, capfd: pytest.CaptureFixture[str], option: str
) -> None:
    frame().to_csv(tmp_path / "mine.csv", index=False)
    command = ["grow", "mine.csv", "--n", "1", "--epochs", "1", "--policy", "static"]
    assert simic(*command, option, root=tmp_path)[0] == 0
    grown = tmp_path / "grown"
    for folder in (grown, grown / "recommended"):
        assert (folder / REFERENCE).exists() == (option == "--reference")
        assert Contract.read(folder / "contract.json").rows == 240
    rows = rows_of("a,b,flag,shade\n99,0,True,mauve\n0,0,True,red")
    rows.to_csv(tmp_path / "new.csv", index=False)
    predict.main(grown, [str(tmp_path / "new.csv")])
    lines = [line.removeprefix("predict.py: ") for line in capfd.readouterr().err.splitlines()]
    said = "column 'a': out of range: 1 of 2 rows|column 'shade': unseen level: 1 of 2 rows"
    assert lines == said.split("|")
    network = load_grown(grown)
    assert network.check(rows) == [("a", "out of range", 1), ("shade", "unseen level", 1)]
    with pytest.raises(SimicError, match="column 'c': was not in training"):
        network.predict(rows.assign(c=1))


def test_a_contract_that_is_none_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "contract.json"
    with pytest.raises(SimicError, match="no such file; grow the network again"):
        Contract.read(path)
    path.write_text(json.dumps({"version": 2}))
    with pytest.raises(SimicError, match=r"contract.json: version: .*; grow the network again"):
        Contract.read(path)
