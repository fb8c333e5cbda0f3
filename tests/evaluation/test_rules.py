"""Hand rules decide as a scalar rule written from their description, and their record gives back the same rule."""

import pytest
import torch
from scripted import MANUAL, SLOTS, World, as_the_scalar_rules
from tiny import tiny_train

from simic import params
from simic.envs import observations
from simic.envs.play import Episode
from simic.errors import SimicError
from simic.evaluation import rules
from simic.evaluation.result import TunedRule, TunedRules, read_rules
from simic.evaluation.rules import ByLength, HandRule, HandRules, last_decisions, rule_of
from simic.growth.life.lifecycle import LIVE_STAGES
from simic.growth.life.vocabulary import TEMPO_STEPS, Op, Stage
from tests.helpers import ROOT
from tests.standard import Instances, Lifecycle, Params, Prepare, Suite

AT_ONCE = Lifecycle(
    training_dwell=0, blending_dwell=0, min_prune_age=0, embargo_steps=0, reset_steps=0, max_seeds=1
)


def test_one_decision_is_the_tail_where_seeds_act_at_once():
    # Today's shortest ramp is three epochs; 1 germinated + dwell 1 + ramp 3 + 1 to hold, and 2 + 1 + 1 to be cleared.
    slow = Lifecycle(training_dwell=1, embargo_steps=0, reset_steps=1, sequential_development=True)
    assert last_decisions(slow) == 4 + 2 + 1 + min(TEMPO_STEPS)


class ScalarRule:
    """Plain Python, one host, written from the description of the rules."""

    def __init__(self, rule, steps, tail, aligned):
        self.rule, self.steps, self.tail = rule, steps, tail
        self.worth, self.final = {}, rule.threshold is not None
        priority = {
            opening: slope * aligned[opening[1]] + offset
            for opening, (slope, offset) in self.priorities()
        }
        self.queue = sorted(rule.order, key=lambda opening: -priority.get(opening, 0.0))[
            : rule.tries
        ]
        self.current = None

    def priorities(self):
        return zip(self.rule.order, self.rule.priorities, strict=bool(self.rule.priorities))

    def act(self, seeds, can, step):
        """Returns (op, slot, blueprint); ``can(op, slot, blueprint)`` asks the masks."""
        left = self.steps - step
        live = [seed for seed in seeds if seed["stage"] in LIVE_STAGES - {Stage.FOSSILIZED}]
        if not live:
            return self.germinated(left, can) or (Op.WAIT, 0, None)
        seed = live[0]
        measured = seed["stage"] == Stage.HOLDING and seed["contribution"] == seed["contribution"]
        judged = measured and seed["dwell"] >= self.rule.patience
        late = seed["stage"] != Stage.HOLDING and seed["age"] > self.tail + self.rule.patience
        if judged and not (self.rule.threshold is None and self.final):
            self.worth[self.current] = max(self.worth.get(self.current, -1e9), seed["contribution"])
        if (judged or late) and not self.queue and not self.final:
            self.final = True
            best = (
                max(self.worth, key=lambda opening: self.worth[opening])
                if self.worth
                else self.current
            )
            self.queue = [] if best == self.current else [best]
        threshold = self.rule.threshold
        good = judged and threshold is not None and seed["contribution"] > threshold
        good = good or (left == 1 and measured and seed["contribution"] > 0)
        op = Op.ADVANCE if can(Op.ADVANCE, seed["slot"], None) else Op.WAIT
        if (judged or late) and self.queue and left > self.tail:
            if (
                not good
                and self.queue[0][0] == seed["slot"]
                and (grown := self.germinated(left, can))
            ):
                return grown  # over the seed that is there
            op = Op.PRUNE
        if good:
            op = Op.FOSSILIZE
        return (op if can(op, seed["slot"], None) else Op.WAIT), seed["slot"], None

    def germinated(self, left, can):
        if self.queue and left > self.tail and can(Op.GERMINATE, *self.queue[0]):
            self.current = self.queue.pop(0)
            return Op.GERMINATE, *self.current
        return None


@pytest.mark.parametrize(
    "lifecycle",
    [
        *(MANUAL.model_copy(update={"embargo_steps": 0, "max_seeds": most}) for most in (1, 3)),
        AT_ONCE,
    ],
    ids=["one seed", "three seeds", "at once"],
)
def test_batched_rules_equal_the_scalar_one_on_the_real_lifecycle(lifecycle):
    """One rule of its own for each host, in one population; every fifth tries in an order of its own."""
    world, steps = World(envs=120, lifecycle=lifecycle), 60
    kinds = world.spec.heads[2].size
    aligned = torch.rand(120, kinds, generator=torch.Generator().manual_seed(1))
    world.features = torch.zeros(120, 3 + kinds * len(observations.KIND))
    world.features[:, 3 + len(observations.KIND) - 1 :: len(observations.KIND)] = aligned
    openings = [(slot, kind) for kind in (5, 1, 3) for slot in range(SLOTS)]
    choices = []
    for host in range(120):
        order = tuple(
            openings[: 2 + host % 4] if host % 3 else openings[:7:3]
        )  # of every third in one slot
        ranked = {
            "priorities": tuple((1.0 + k % 2, 0.1 * k) for k in range(len(order))),
            "tries": 2,
        }
        threshold = None if host % 2 else 1.0 + host % 4
        choices.append(HandRule(order, 1 + host % 3, threshold, **({} if host % 5 else ranked)))
    actor, tail = HandRules(lifecycle, choices), last_decisions(lifecycle)
    scalars = [
        ScalarRule(*arguments)
        for arguments in zip(choices, [steps] * 120, [tail] * 120, aligned.tolist(), strict=True)
    ]
    met = as_the_scalar_rules(world, actor, scalars, steps)
    # Each op but SET_ALPHA_TARGET by both families; seeds that are there at once need no ADVANCE.
    assert len({(op, choices[host].threshold is None) for op, host in met}) == 2 * (
        4 if lifecycle is AT_ONCE else 5
    )
    returned = [
        host
        for host, scalar in enumerate(scalars)
        if choices[host].threshold is None and scalar.final
    ]
    assert len(returned) > 20


def tuned(**changes):
    fields = {
        "family": "in order", "order": ("b at 0", "a at 1"), "patience": 2, "threshold": 4.0, "epochs": 6,
        "score": 71.5, "hosts": 64,
    }  # fmt: skip
    return TunedRule(**(fields | changes))


def test_the_actor_is_that_of_the_nearest_number_of_epochs_and_asks_what_any_of_them_asks():
    class Named:
        def __init__(self, *slots):
            self.asks = {"slot": slots}

        def start(self, episode):
            started.append((self.asks["slot"], episode.steps))

    actor = ByLength({6: Named(0, 2), 12: Named(1)})
    assert actor.asks == {"slot": (0, 1, 2)}
    # 10 is nearer to 12; 9 is as near to both.
    for steps, slots in ((3, (0, 2)), (9, (0, 2)), (10, (1,)), (40, (1,))):
        started = []
        actor.start(Episode(torch.arange(1), 0, 1, steps))
        assert started == [(slots, steps)]


def file_of(folder, tuned_for, *tuned_rules):
    """Write tuned rules into a file of that folder."""
    rules = TunedRules(tuned_for=tuned_for, rules=tuned_rules, configurations=7, trainings=900)
    path = folder / "some.json"
    path.write_text(rules.to_json())
    return path, rules


def test_tuned_rules_come_back_from_their_file(tmp_path):
    returning = tuned(family="return to the best", threshold=None, epochs=12)
    path, written = file_of(tmp_path, "f" * 64, tuned(), returning)
    assert read_rules(path) == written
    path.write_text(written.to_json()[:-9])
    with pytest.raises(
        SimicError, match=r"some\.json: not tuned rules of schema 1: .*python -m benchmarks\.rules"
    ):
        read_rules(path)


def test_a_rule_has_the_openings_that_can_grow_here():
    priorities = tuned(priorities=((1.0, 2.0), (3.0, 4.0)), tries=2)
    for rule, openings, expected in (
        (tuned(), [(0, 0), (0, 1), (1, 0)], HandRule(((0, 1), (1, 0)), 2, 4.0)),
        (tuned(), [(0, 0), (0, 1)], HandRule(((0, 1),), 2, 4.0)),  # a at 1 is too large
        (priorities, [(1, 0)], HandRule(((1, 0),), 2, 4.0, ((3.0, 4.0),), 1)),
    ):
        assert rule_of(rule, ["a", "b"], openings) == expected
    with pytest.raises(
        SimicError, match=r"none of b at 0, a at 1 can grow here: possible are a at 0$"
    ):
        rule_of(tuned(), ["a", "b"], [(0, 0)])


def test_the_rules_that_come_with_simic_are_those_of_the_default_run():
    assert rules.known(params.load(ROOT / "params.yaml")) is not None


def test_rules_are_known_by_their_tasks_and_hosts_whatever_the_length_and_number(
    tmp_path, monkeypatch
):
    settings = Params(prepare=Prepare(task="suite"), train=tiny_train())
    _, written = file_of(tmp_path, rules.setting(settings), tuned())
    monkeypatch.setattr(rules, "PUBLISHED", tmp_path)
    assert rules.known(settings) == written
    longer = settings.model_copy(update={"train": tiny_train(episode_steps=31), "rng_seed": 5})
    many = Prepare(task="suite", suite=Suite(instances=Instances(train=999)))
    assert rules.known(longer.model_copy(update={"prepare": many})) == written
    for change in ({"train": tiny_train(batch_size=16)}, {"prepare": Prepare(task="digits")}):
        assert rules.known(settings.model_copy(update=change)) is None
