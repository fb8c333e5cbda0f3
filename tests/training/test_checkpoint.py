"""A checkpoint is whole and verified, or it is not used; nothing that is written is ever lost to a failed write."""

import math
import resource
import shutil

import pytest
import torch
from small_runs import rewritten

from simic import durable
from simic.errors import SimicError
from simic.training.checkpoint import (
    FORMAT_VERSION,
    CheckpointStore,
    Damaged,
    Edited,
    Manifest,
    link,
    read,
    read_published,
    refuse_edited,
)
from simic.training.machine import Machine

MACHINE = Machine(
    python="3",
    libraries={},
    cpu_capability="A",
    threads=1,
    device="cpu",
    tf32=False,
    backend="auto",
    group=4,
)


def manifest(iteration: int, best: int | None = None, **scalars: object) -> Manifest:
    scalars = {"iteration": iteration, "score": 0.1 + 0.2, "none": None, **scalars}
    return Manifest(
        iteration=iteration, best_iteration=best, telemetry_files=iteration, telemetry_sha256="t",
        params={"rng_seed": 1}, params_sha256="p", data_sha256="d", machine=MACHINE, specs={}, scalars=scalars,
    )  # fmt: skip


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {
        "a/weight": torch.full((3, 2), value),
        "b/count": torch.tensor(7),
        "c/wide": torch.tensor([math.pi], dtype=torch.float64),
        "d/flag": torch.tensor([True, False]),
        "e/empty": torch.zeros(0, 4),
    }


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints", keep_last=2)
    for iteration in (1, 2):
        store.write(tensors(float(iteration)), manifest(iteration))
    return store


def snapshot(store: CheckpointStore) -> dict[str, bytes]:
    return {
        str(path.relative_to(store.root)): path.read_bytes()
        for path in store.root.rglob("*")
        if path.is_file()
    }


def test_what_is_written_is_read_back_bit_for_bit(store):
    checkpoint = store.read(2)
    for name, tensor in tensors(2.0).items():
        assert checkpoint.tensors[name].dtype == tensor.dtype
        assert torch.equal(checkpoint.tensors[name], tensor)
    assert checkpoint.manifest.scalars == manifest(2).scalars
    assert checkpoint.manifest.scalars["score"] == 0.1 + 0.2  # not 0.3
    assert checkpoint.manifest.machine == MACHINE


def test_the_bytes_depend_on_neither_path_nor_time_and_the_last_ones_and_the_best_stay(
    store, tmp_path
):
    elsewhere = CheckpointStore(tmp_path / "some" / "where" / "else", keep_last=2)
    for iteration in (1, 2):
        elsewhere.write(tensors(float(iteration)), manifest(iteration))
    assert snapshot(elsewhere) == snapshot(store)
    for iteration in range(3, 8):
        elsewhere.write(tensors(1.0), manifest(iteration, best=3))
    assert elsewhere.numbers() == [3, 6, 7]  # the last ones and the best stay


@pytest.mark.parametrize("name", ["state.safetensors", "manifest.json"])
def test_every_flipped_bit_and_every_truncation_is_noticed(store, name):
    path = store.path(2) / name
    content = path.read_bytes()
    # White space of JSON says nothing.
    flipped = [at for at in range(0, len(content), 7) if not content[at : at + 1].isspace()]
    damaged = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in flipped]
    for damage in (*damaged, *(content[:length] for length in range(0, len(content) - 2, 31))):
        path.write_bytes(damage)
        with pytest.raises(Damaged, match="000002"):
            store.read(2)
    path.unlink()
    with pytest.raises(Damaged, match="not readable: No such file"):
        store.read(2)
    path.write_bytes(content)
    assert store.read(2).manifest.iteration == 2


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_state_that_is_not_finite_is_never_written(store, bad):
    before = snapshot(store)
    with pytest.raises(SimicError, match=r"state after 3 iterations: a/weight is not finite"):
        store.write(tensors(bad), manifest(3))
    with pytest.raises(SimicError, match=r"state after 3 iterations: best is not finite"):
        store.write(
            tensors(1.0), manifest(3, best_score=None).model_copy(update={"scalars": {"best": bad}})
        )
    assert snapshot(store) == before


def test_a_full_disk_loses_nothing_and_says_what_is_kept(store):
    before = snapshot(store)
    large = {"weight": torch.zeros(100_000)}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(SimicError) as error:
            store.write(large, manifest(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "000003: cannot write checkpoint: File too large" in str(error.value)
    assert "the checkpoint after 2 iterations is kept" in str(error.value)
    assert "\n" not in str(error.value)
    assert snapshot(store) == before
    assert store.write(large, manifest(3)) == store.path(3)


@pytest.fixture
def linked(tmp_path) -> tuple[CheckpointStore, dict[int, str]]:
    """Three checkpoints and their hash chain; the first, as the best, and the last are published."""
    store, links = CheckpointStore(tmp_path / "linked", keep_last=3), {0: ""}
    for iteration in (1, 2, 3):
        state = tensors(float(iteration))
        links[iteration] = link(manifest(iteration, chain=links[iteration - 1]).scalars, state)
        store.write(state, manifest(iteration, best=1, chain=links[iteration]))
    del links[0]
    store.publish(tmp_path / "out", 1, 3, links)
    return store, links


def test_best_and_latest_are_published_under_their_names_as_a_whole(linked, tmp_path):
    store, links = linked
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "best",
        "chain.json",
        "latest",
    ]
    for _ in range(2):
        assert read_published(tmp_path / "out", "best").manifest.iteration == 1
        assert read_published(tmp_path / "out", "latest").manifest.iteration == 3
        (store.path(1) / "state.safetensors").write_bytes(b"")
        with pytest.raises(
            Damaged, match="run the same command again: it goes on from what is good"
        ):
            store.publish(tmp_path / "out", 1, 3, links)


def test_a_directory_is_held_against_its_number_and_a_published_one_against_the_chain(
    linked, tmp_path
):
    def change(source, target) -> None:
        shutil.rmtree(target)
        shutil.copytree(source, target)

    store, _ = linked
    change(tmp_path / "out" / "best", tmp_path / "out" / "latest")
    with pytest.raises(Edited, match="latest: holds the state after 1 iterations, not after 3"):
        read_published(tmp_path / "out", "latest")
    change(store.path(2), store.path(3))
    with pytest.raises(Edited, match="000003: holds the state after 2 iterations, not after 3"):
        store.read(3)


def test_what_is_edited_with_its_checksums_does_not_give_the_link_of_the_chain(linked, tmp_path):
    store, links = linked
    for path in (tmp_path / "out" / "latest", store.path(3)):
        checkpoint = read(path)
        refuse_edited(checkpoint, links)
        rewritten(checkpoint, checkpoint.tensors | {"a/weight": checkpoint.tensors["a/weight"] + 1})
        with pytest.raises(Edited, match="not those that the hash chain of this run has"):
            refuse_edited(read(path), links)
    with pytest.raises(Edited, match="latest: its tensors and counters"):
        read_published(tmp_path / "out", "latest")
    refuse_edited(
        read(store.path(3)), {3: links[3]}
    )  # without the link before it nothing can be said
    for foreign in ({1: links[2]}, {2: links[1]}):  # another chain is none of the checkpoint
        with pytest.raises(Edited):
            refuse_edited(store.read(2), links | foreign)


def rewrite(path, **changes) -> None:
    """A manifest that is consistent in itself, but not one that this version wrote."""
    content = durable.checked((path / "manifest.json").read_bytes()) | changes
    (path / "manifest.json").write_bytes(durable.with_checksum(content))


def test_a_format_of_another_version_is_refused_by_name(store):
    rewrite(store.path(2), format_version=99)
    with pytest.raises(
        SimicError, match=f"format version 99, this version reads {FORMAT_VERSION}"
    ) as error:
        store.read(2)
    assert not isinstance(error.value, Damaged), "it is good, so no older one may be taken instead"


@pytest.mark.parametrize(
    "content", [b"\x80\x04cos\n.", b"[" * 100_000, b'{"checksum": 3}', durable.with_checksum({})]
)
def test_a_crafted_manifest_is_refused_in_one_line(store, content):
    (store.path(2) / "manifest.json").write_bytes(content)
    with pytest.raises(Damaged) as error:
        store.read(2)
    assert "\n" not in str(error.value)


def test_a_pickle_in_place_of_tensors_is_refused_also_with_the_right_checksum(store, tmp_path):
    content = b"\x80\x04cposix\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR."
    (store.path(2) / "state.safetensors").write_bytes(content)
    rewrite(store.path(2), sha256={"state.safetensors": durable.sha256_of(content)})
    with pytest.raises(Damaged, match="not a safetensors file"):
        store.read(2)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content", [b"{", durable.with_checksum({}), durable.with_checksum({"best": 1, "latest": 3})]
)
def test_a_hash_chain_that_is_none_is_refused_with_what_brings_it_back(linked, tmp_path, content):
    (tmp_path / "out" / "chain.json").write_bytes(content)
    with pytest.raises(
        Damaged, match=r"chain\.json: damaged: .*; dvc checkout checkpoints brings back"
    ):
        read_published(tmp_path / "out", "latest")
