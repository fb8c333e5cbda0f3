"""A directory is either whole in place or not there."""

import pytest

from simic import durable


def test_a_new_directory_appears_whole_and_replaces_the_old_one(tmp_path):
    target = tmp_path / "target"
    for content in (b"one", b"two"):
        with durable.new_directory(target) as folder:
            durable.write_synced(folder / "file", content)
            assert not target.exists() or (target / "file").read_bytes() == b"one"
        assert (target / "file").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_an_error_leaves_the_target_as_it_was(tmp_path):
    target = tmp_path / "target"
    with durable.new_directory(target) as folder:
        durable.write_synced(folder / "file", b"one")

    def interrupted():
        with durable.new_directory(target) as folder:
            durable.write_synced(folder / "other", b"two")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in target.iterdir()] == ["file"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_what_a_killed_writer_left_is_cleared(tmp_path):
    (tmp_path / ".target.abc.tmp").mkdir()
    (tmp_path / ".target.abc.old").mkdir()
    (tmp_path / ".target2.abc.tmp").mkdir()
    with durable.new_directory(tmp_path / "target"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".target2.abc.tmp", "target"]
