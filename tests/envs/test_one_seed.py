"""With one seed allowed, a controller can still try one place after another."""

from simic.growth.life.lifecycle import LIVE_STAGES, in_stages
from simic.growth.life.vocabulary import ALPHA_SPEED_STEPS, Op, Ramp, Stage
from tests.standard import Lifecycle

from .transitions import act

ONE = Lifecycle(max_seeds=1)  # all timing as shipped
STEPS = 40


def test_one_seed_is_tried_pruned_and_another_kept_elsewhere(make_env):
    """Pruned as soon as it may be, 8 steps after its germination; 1 + 5 + 1 steps later its slot is empty again, and
    until then all others are closed too: one unproven seed at a time.
    """
    env = make_env(envs=2, steps=STEPS, family="mlp", lifecycle=ONE, batches_per_epoch=1)
    observation, _ = env.reset()
    slot, done = 0, []
    for step in range(STEPS):
        legal = observation.masks["slot"].all(dim=0)
        if legal[Op.GERMINATE, slot]:
            op = Op.GERMINATE
        elif slot == 0 and legal[Op.PRUNE, 0]:
            op = Op.PRUNE
        else:
            op = Op.FOSSILIZE if legal[Op.FOSSILIZE, slot] else Op.WAIT
        observation, *_, info = env.step(act(2, op, slot=slot))
        assert info.effective_op.tolist() == [op] * 2, step
        live = in_stages(info.stage, LIVE_STAGES)
        assert live.sum(dim=1).max() <= 1
        assert not (live.any(dim=1) & observation.masks["op"][:, Op.GERMINATE]).any()
        known = (~env.state.vitals.losses.isnan()).sum(dim=1)
        if op is Op.PRUNE:  # the governor compares with no network that this one no longer is
            assert (known <= 1).all()
        if op is not Op.WAIT:
            done.append((step, op, slot))
        slot += op is Op.PRUNE
    assert done == [(0, Op.GERMINATE, 0), (8, Op.PRUNE, 0), (16, Op.GERMINATE, 1), (24, Op.FOSSILIZE, 1)]
    assert info.stage.tolist() == [[Stage.DORMANT, Stage.FOSSILIZED, Stage.DORMANT]] * 2
    assert info.score.equal(info.committed_accuracy) and info.committed_accuracy.equal(info.live_accuracy)


def test_while_a_seed_is_faded_out_the_governor_forgets_too(make_env):
    env = make_env(envs=2, steps=STEPS, family="mlp", lifecycle=ONE, batches_per_epoch=1)
    observation, _ = env.reset()
    asked = [(0, Op.GERMINATE)]
    fading = []
    for step in range(STEPS):
        blended = bool((env.slots.alpha[:, 0] > 0).all() and observation.masks["slot"][:, Op.PRUNE, 0].all())
        if blended and len(asked) == 1:
            asked.append((step, Op.PRUNE))
        op = asked[-1][1] if asked[-1][0] == step else Op.WAIT
        observation, *_ = env.step(act(2, op, alpha_speed=len(ALPHA_SPEED_STEPS) - 1))
        if bool((env.slots.ramp[:, 0] == Ramp.DOWN).all()):
            fading.append((~env.state.vitals.losses.isnan()).sum(dim=1).tolist())
    assert len(fading) >= 5 and all(known == [1, 1] for known in fading)
    assert (env.state.vitals.losses.isfinite().sum(dim=1) > 1).all()  # and then remembers again
