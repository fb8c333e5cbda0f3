"""What numba keeps of the compiled loops."""

import shutil
from collections.abc import Callable
from pathlib import Path

from simic.growth.compiled import hosts


def test_where_nothing_can_be_kept_every_process_compiles() -> None:
    wanted = []

    def make(sources: str, cache: bool) -> Callable[..., None]:
        wanted.append(cache)
        if cache:
            raise RuntimeError("no locator available")
        return print

    assert hosts.kept(make) is print
    assert wanted == [True, False]


def test_what_is_kept_follows_all_sources(monkeypatch, tmp_path: Path) -> None:
    """Not only the file in which the loops stand."""
    before = hosts._sources()
    folder = tmp_path / "compiled"
    shutil.copytree(Path(hosts.__file__).parent, folder)
    monkeypatch.setattr(hosts, "__file__", str(folder / "hosts.py"))
    assert hosts._sources() == before
    with (folder / "seeds.py").open("a") as file:
        file.write("# changed\n")
    assert hosts._sources() != before
