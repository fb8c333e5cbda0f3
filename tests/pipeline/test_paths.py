"""Paths are data: a project may lie under any name that a file system allows."""

from pathlib import Path

import pytest
from sqlalchemy import create_engine

from simic.pipeline.paths import sqlite_uri


@pytest.mark.parametrize("name", ["a%20b", "50%", "a?b", "a#b&c='d';e@f:[g] ü+h"])
def test_a_database_lies_where_its_uri_says(name: str, tmp_path: Path) -> None:
    file = tmp_path / name / "mlflow.db"
    file.parent.mkdir()
    with create_engine(sqlite_uri(file)).connect() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
    assert file.exists() and [path.name for path in tmp_path.iterdir()] == [name]
