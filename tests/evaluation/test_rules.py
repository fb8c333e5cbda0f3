"""Hand rules decide as a scalar rule written from their description, and their record gives back the same rule."""

import pytest
import torch
from scripted import MANUAL, SLOTS, World, episode, legal
from tiny import tiny_train

from simic.agent.spec import Observation
from simic.envs import observations
from simic.envs.play import Episode, Situation
from simic.errors import SimicError
from simic.evaluation import rules
from simic.evaluation.result import TunedRule, TunedRules, read_rules
from simic.evaluation.rules import ByLength, HandRule, HandRules, last_decisions, rule_of
from simic.growth.life.lifecycle import LIVE_STAGES
from simic.growth.life.vocabulary import TEMPO_STEPS, Op, Slots, Stage
from tests.standard import Instances, Lifecycle, Params, Prepare, Suite

AT_ONCE = Lifecycle(training_dwell=0, blending_dwell=0, min_prune_age=0, embargo_steps=0, reset_steps=0, max_seeds=1)
NAN = float("nan")
ORDER = ((0, 4), (0, 2), (0, 7))
KINDS = 8


class OneSlot:
    """Hosts with one slot, whose seed can be judged, kept or grown over at every decision."""

    def __init__(self, rule, hosts, steps=9, alignment=None):
        self.hosts, self.slots = hosts, Slots.empty(hosts, 1)
        self.features = torch.zeros(hosts, 3 + KINDS * len(observations.KIND))
        if alignment is not None:
            self.features[:, 3 + len(observations.KIND) - 1 :: len(observations.KIND)] = torch.tensor(alignment)
        self.actor = HandRules(AT_ONCE, rule if isinstance(rule, list) else [rule])
        self.actor.tail = 1  # the next seed is measured one decision later
        self.actor.start(episode(World(envs=hosts), steps=steps))

    def decide(self, step, contributions=None):
        """The op, and the blueprint where it germinates; then the seed that there is."""
        if contributions is not None:
            self.slots.contribution[:, 0] = torch.tensor(contributions)
        live = torch.isin(self.slots.stage, torch.tensor(sorted(LIVE_STAGES - {Stage.FOSSILIZED})))
        slot = torch.ones(self.hosts, len(Op), 1, dtype=torch.bool)
        slot[:, Op.ADVANCE] = False
        slot[:, Op.FOSSILIZE] = live & self.slots.contribution.isfinite()
        slot[:, Op.PRUNE] = live
        slot[:, Op.GERMINATE] = self.slots.stage != Stage.FOSSILIZED
        masks = {"op": slot.any(2), "slot": slot, "blueprint": slot[:, Op.GERMINATE, :, None].expand(-1, -1, KINDS)}
        observation = Observation(self.features, self.slots.blueprint, masks)
        tracker, alive = World(envs=self.hosts).tracker, torch.ones(self.hosts, dtype=torch.bool)
        action = self.actor.act(Situation(observation, self.slots, tracker, alive, step))
        self._follow(action)
        germinates = (action.op == Op.GERMINATE).tolist()
        kinds = zip(action.op.tolist(), action.blueprint.tolist(), germinates, strict=True)
        return [(Op(op).name, kind) if yes else Op(op).name for op, kind, yes in kinds]

    def _follow(self, action):
        """A new seed holds from its first epoch."""
        new, kept = action.op == Op.GERMINATE, action.op == Op.FOSSILIZE
        self.slots.stage[new, 0], self.slots.stage[kept, 0] = int(Stage.HOLDING), int(Stage.FOSSILIZED)
        self.slots.dwell[:, 0] = torch.where(new, 0, self.slots.dwell[:, 0]) + 1
        self.slots.age[:, 0] = torch.where(new, 0, self.slots.age[:, 0]) + 1
        self.slots.blueprint[new, 0] = action.blueprint[new]
        self.slots.contribution[new, 0] = NAN


def test_in_order_keeps_the_first_beyond_its_threshold_and_grows_the_next_over_what_is_not():
    world = OneSlot(HandRule(ORDER, 2, 5.0), hosts=3)
    assert world.decide(0) == [("GERMINATE", 4)] * 3
    # After one epoch nothing is judged, whatever it contributes: patience is two.
    assert world.decide(1, [9.0, 1.0, 1.0]) == ["WAIT"] * 3
    # 9 > 5 is kept; 5 is not beyond 5, 1 neither: the second of the order grows over them.
    assert world.decide(2, [9.0, 5.0, 1.0]) == ["FOSSILIZE", ("GERMINATE", 2), ("GERMINATE", 2)]
    assert world.decide(3, [9.0, 6.0, 0.0])[1:] == ["WAIT"] * 2
    assert world.decide(4, [9.0, 6.0, 0.0])[1:] == ["FOSSILIZE", ("GERMINATE", 7)]
    # The last of the order stays, and is kept at the last decision (8) since it contributes above 0.
    assert [world.decide(step, [9.0, 6.0, 0.5])[2] for step in range(5, 9)] == ["WAIT"] * 3 + ["FOSSILIZE"]


def test_the_best_of_the_tries_is_grown_again_unless_it_is_there():
    world = OneSlot(HandRule(ORDER, 1, None), hosts=3, steps=7)
    assert world.decide(0) == [("GERMINATE", 4)] * 3
    assert world.decide(1, [3.0, 1.0, 1.0]) == [("GERMINATE", 2)] * 3
    assert world.decide(2, [2.0, 4.0, 2.0]) == [("GERMINATE", 7)] * 3
    # Tried: 4, 2, 7 with 3, 2, 1 | 1, 4, 3 | 1, 2, 5. The best is the first, the second, and the one that is there.
    assert world.decide(3, [1.0, 3.0, 5.0]) == [("GERMINATE", 4), ("GERMINATE", 2), "WAIT"]
    # A worse measurement later changes nothing; at the last decision (6) what contributes above 0 is kept.
    assert world.decide(4, [0.5, 0.5, 0.5]) == world.decide(5, [0.5, 0.5, 0.5]) == ["WAIT"] * 3
    assert world.decide(6, [0.5, -0.5, 0.5]) == ["FOSSILIZE", "WAIT", "FOSSILIZE"]


def test_by_alignment_every_host_has_its_own_order():
    """Slopes 1, 2 and 1 and an offset for the last; two of three are tried, and the second contributes more."""
    alignment = torch.zeros(3, KINDS)
    alignment[:, 4], alignment[:, 2], alignment[:, 7] = torch.tensor(
        [[0.9, 0.2, 0.5], [0.1, 0.3, 0.5], [0.2, 0.9, -1.0]]
    )
    rule = HandRule(ORDER, 1, None, ((1.0, 0.0), (2.0, 0.0), (1.0, 0.1)), 2)
    world = OneSlot(rule, hosts=3, steps=6, alignment=alignment.tolist())
    assert world.decide(0) == [("GERMINATE", 4), ("GERMINATE", 7), ("GERMINATE", 2)]
    assert world.decide(1, [1.0, 1.0, 1.0]) == [("GERMINATE", 7), ("GERMINATE", 2), ("GERMINATE", 4)]
    assert world.decide(2, [2.0, 0.5, 2.0]) == ["WAIT", ("GERMINATE", 7), "WAIT"]
    both = OneSlot([rule, HandRule(ORDER[:2], 1, None)], hosts=2, alignment=alignment[:2].tolist())  # one is shorter
    assert both.decide(0) == [("GERMINATE", 4), ("GERMINATE", 4)]
    assert both.decide(1, [1.0, 1.0]) == [("GERMINATE", 7), ("GERMINATE", 2)]


def test_one_decision_is_the_tail_where_seeds_act_at_once():
    # Today's shortest ramp is three epochs; 1 germinated + dwell 1 + ramp 3 + 1 to hold, and 2 + 1 + 1 to be cleared.
    slow = Lifecycle(training_dwell=1, embargo_steps=0, reset_steps=1, sequential_development=True)
    assert last_decisions(slow) == 4 + 2 + 1 + min(TEMPO_STEPS)


class ScalarRule:
    """Plain Python, one host, written from the description of the rules."""

    def __init__(self, rule, steps, tail):
        self.rule, self.steps, self.tail = rule, steps, tail
        self.queue, self.worth, self.final = list(rule.order), {}, rule.threshold is not None
        self.current = None

    def act(self, seeds, can, step):
        """Returns (op, slot, blueprint); ``can(op, slot, blueprint)`` asks the masks."""
        left = self.steps - step
        live = [seed for seed in seeds if seed["stage"] in LIVE_STAGES - {Stage.FOSSILIZED}]
        if not live:
            return self.germinated(left, can) or (Op.WAIT, 0, None)
        seed = live[0]
        known = seed["stage"] == Stage.HOLDING and seed["contribution"] == seed["contribution"]
        judged = known and seed["dwell"] >= self.rule.patience
        late = seed["stage"] != Stage.HOLDING and seed["age"] > self.tail + self.rule.patience
        if judged and not (self.rule.threshold is None and self.final):
            self.worth[self.current] = max(self.worth.get(self.current, -1e9), seed["contribution"])
        if (judged or late) and not self.queue and not self.final:
            self.final = True
            best = max(self.worth, key=lambda opening: self.worth[opening]) if self.worth else self.current
            self.queue = [] if best == self.current else [best]
        op = Op.ADVANCE if can(Op.ADVANCE, seed["slot"], None) else Op.WAIT
        if (judged or late) and self.queue and left > self.tail:
            op = Op.PRUNE
        threshold = self.rule.threshold
        if (judged and threshold is not None and seed["contribution"] > threshold) or (
            left == 1 and known and seed["contribution"] > 0
        ):
            op = Op.FOSSILIZE
        return (op if can(op, seed["slot"], None) else Op.WAIT), seed["slot"], None

    def germinated(self, left, can):
        if self.queue and left > self.tail and can(Op.GERMINATE, *self.queue[0]):
            self.current = self.queue.pop(0)
            return Op.GERMINATE, *self.current
        return None


@pytest.mark.parametrize("most", [1, 3])
def test_batched_rules_equal_the_scalar_one_on_the_real_lifecycle(most):
    """One rule of its own for each host, in one population."""
    lifecycle = MANUAL.model_copy(update={"embargo_steps": 0, "max_seeds": most})
    world, steps = World(envs=120, lifecycle=lifecycle), 60
    openings = [(slot, kind) for kind in (5, 1, 3) for slot in range(SLOTS)]
    choices = [
        HandRule(tuple(openings[: 2 + host % 4]), 1 + host % 3, None if host % 2 else 1.0 + host % 4)
        for host in range(120)
    ]
    actor, tail = HandRules(lifecycle, choices), last_decisions(lifecycle)
    scalars = [ScalarRule(rule, steps, tail) for rule in choices]
    actor.start(episode(world, steps=steps))
    asked = set()
    for step in range(steps):
        situation = world.situation(step)
        action = actor.act(situation)
        legal(world, situation, action)
        for host, scalar in enumerate(scalars):
            masks = situation.observation.masks

            def can(op, slot, kind, host=host, masks=masks):
                allowed = bool(masks["slot"][host, op, slot])
                return allowed and (op != Op.GERMINATE or bool(masks["blueprint"][host, slot, kind]))

            expected = scalar.act(seeds_of(world.slots, host), can, step)
            found = Op(int(action.op[host])), int(action.slot[host]), int(action.blueprint[host])
            assert found[0] == expected[0], (step, host, choices[host])
            if expected[0] != Op.WAIT:
                assert found[1] == expected[1]
            if expected[0] == Op.GERMINATE:
                assert found[2] == expected[2]
            asked.add((expected[0], choices[host].threshold is None))
        world.step(action, step)
    assert len(asked) == 2 * 5  # each op but SET_ALPHA_TARGET by both families
    returned = [host for host, scalar in enumerate(scalars) if choices[host].threshold is None and scalar.final]
    assert len(returned) > 20


def seeds_of(slots, host):
    fields = ("dwell", "age", "contribution")
    rows = [{name: getattr(slots, name)[host, slot].item() for name in fields} for slot in range(SLOTS)]
    return [{**row, "stage": Stage(int(slots.stage[host, k])), "slot": k} for k, row in enumerate(rows)]


def tuned(**changes):
    given = {
        "family": "in order", "order": ("b at 0", "a at 1"), "patience": 2, "threshold": 4.0, "epochs": 6,
        "score": 71.5, "hosts": 64,
    }  # fmt: skip
    return TunedRule(**(given | changes))


def test_the_actor_is_that_of_the_nearest_number_of_epochs_and_asks_what_any_of_them_asks():
    class Named:
        def __init__(self, *slots):
            self.asks = {"slot": slots}

        def start(self, episode):
            started.append((self.asks["slot"], episode.steps))

    actor = ByLength({6: Named(0, 2), 12: Named(1)})
    assert actor.asks == {"slot": (0, 1, 2)}
    # 8 is nearer to 6, 10 to 12; 9 is as near to both.
    for steps, slots in ((3, (0, 2)), (6, (0, 2)), (8, (0, 2)), (9, (0, 2)), (10, (1,)), (12, (1,)), (40, (1,))):
        started = []
        actor.start(Episode(torch.arange(1), 0, 1, steps))
        assert started == [(slots, steps)]


def test_tuned_rules_come_back_from_their_file(tmp_path):
    returning = tuned(family="return to the best", threshold=None, epochs=12)
    found = TunedRules(tuned_for="f" * 64, rules=(tuned(), returning), configurations=7, trainings=900)
    path = tmp_path / "some.json"
    path.write_text(found.to_json())
    assert read_rules(path) == found
    rule = rule_of(tuned(), ["a", "b"], [(0, 0), (0, 1), (1, 0)])
    assert rule == HandRule(((0, 1), (1, 0)), 2, 4.0)
    assert rule_of(tuned(), ["a", "b"], [(0, 0), (0, 1)]).order == ((0, 1),)  # too large ones are left out
    own = tuned(priorities=((1.0, 2.0), (3.0, 4.0)), tries=2)
    assert rule_of(own, ["a", "b"], [(1, 0)]) == HandRule(((1, 0),), 2, 4.0, ((3.0, 4.0),), 1)
    with pytest.raises(SimicError, match=r"none of b at 0, a at 1 can grow here: possible are a at 0$"):
        rule_of(tuned(), ["a", "b"], [(0, 0)])
    path.write_text(found.to_json()[:-9])
    with pytest.raises(SimicError, match=r"some\.json: not tuned rules of schema 1: .*headroom\.tune=true"):
        read_rules(path)


def test_rules_are_known_by_their_tasks_and_hosts_whatever_the_length_and_number(tmp_path):
    params = Params(prepare=Prepare(task="suite"), train=tiny_train())
    found = TunedRules(tuned_for=rules.setting(params), rules=(tuned(),), configurations=1, trainings=1)
    (tmp_path / "tiny.json").write_text(found.to_json())
    assert rules.known(params, tmp_path) == found
    longer = params.model_copy(update={"train": tiny_train(episode_steps=31), "rng_seed": 5})
    many = Prepare(task="suite", suite=Suite(instances=Instances(train=999)))
    assert rules.known(longer.model_copy(update={"prepare": many}), tmp_path) == found
    for other in ({"train": tiny_train(batch_size=16)}, {"prepare": Prepare(task="digits")}):
        assert rules.known(params.model_copy(update=other), tmp_path) is None
