"""The controller that grows a user's data is the project's own where it fits, else a published one, else a rule."""

import re

import pytest
import torch
from tiny import SMALL, small_learned

from simic import durable
from simic.data.batches import Meta
from simic.evaluation import controllers
from simic.evaluation.controllers import Controller, Publication, Rule, choose
from simic.params import Host
from simic.training.learned import CARD_FILE, Learned
from tests import standard
from tests.standard import Train

CPU = torch.device("cpu")
IMPAIRED = USUAL = standard.Host()
DEEP = standard.Host(preset="deep")
TABLES = Host(family="mlp", preset="baseline")


def learned(host: Host, slots: int = 3) -> Learned:
    return small_learned(Train(host=host, policy=SMALL), slots)


def meta(*shape: int) -> Meta:
    return Meta.model_construct(classes=2, shape=shape, tasks=[])


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """Return ``shelf(suite, host, shape)``, which publishes a controller."""
    monkeypatch.setattr(controllers, "PUBLISHED", tmp_path / "published")

    def add(suite: str, host: Host, shape: tuple[int, ...], slots: int = 3) -> None:
        folder = tmp_path / "published" / suite
        learned(host, slots).save(folder)
        publication = Publication(suite=suite, sample_shape=shape)
        card = durable.checked((folder / CARD_FILE).read_bytes()) | {
            "published": publication.model_dump()
        }
        (folder / CARD_FILE).write_bytes(durable.with_checksum(card))

    return add


@pytest.fixture
def shipped(shelf):
    shelf("images", IMPAIRED, (3, 32, 32))
    shelf("tables", TABLES, (1, 1, 9))


def own(host: Host) -> Controller:
    return Controller("the project's own controller", learned(host))


OWN = "the project's own controller"
IMAGES, VECTORS = (
    f"the published controller of suite {name}, trained for 3 iterations"
    for name in ("images", "tables")
)


RULE = "the policy patient, since no controller fits: .*"


@pytest.mark.parametrize(
    ("trained", "host", "shape", "name"),
    [
        (IMPAIRED, None, (1, 16, 16), OWN),
        (TABLES, TABLES, (1, 1, 4), OWN),
        (None, None, (1, 16, 16), IMAGES),
        (TABLES, IMPAIRED, (1, 16, 16), IMAGES),
        (None, None, (1, 1, 4), VECTORS),
        (IMPAIRED, TABLES, (1, 1, 4), VECTORS),
        (
            None,
            None,
            (64,),
            RULE + "suite images.*trained on images, these are tokens; .*vectors, these are tokens",
        ),
        (
            None,
            DEEP,
            (1, 16, 16),
            RULE + "suite images.*trained on cnn/impaired, 3 slots.*this is cnn/deep",
        ),
        (
            TABLES,
            DEEP,
            (1, 16, 16),
            RULE + "own controller: .*mlp/baseline.*; the published controller of suite image",
        ),
    ],
)
def test_the_projects_own_comes_first_where_it_fits_else_a_published_one_else_a_rule(
    shipped, trained, host, shape, name
):
    """A rule grows where none fits, and says why."""
    choice = choose(trained and own(trained), host, USUAL, meta(*shape), CPU)
    if name.startswith(RULE):
        assert isinstance(choice, Rule) and choice.name == "patient" and "\n" not in str(choice)
        assert re.match(name, str(choice))
    else:
        assert isinstance(choice, Controller) and choice.name == name


def test_vectors_are_grown_by_the_tuned_rule_where_hosts_are_those_it_is_tuned_for(shelf):
    tables = Host(family="tables", preset="baseline")
    for host, usual in ((None, tables), (tables, USUAL)):
        rule = choose(None, host, usual, meta(1, 1, 5), CPU)
        assert str(rule).startswith("the policy tuned_rule, since no controller fits")
    images = choose(None, None, tables, meta(1, 16, 16), CPU)
    assert images.name == "patient"
    assert str(images).endswith(
        "no controller fits: there is none in models/policy, and none is published"
    )
    assert choose(None, USUAL, tables, meta(1, 1, 5), CPU).name == "patient"
