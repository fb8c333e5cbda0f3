"""The report: one file, no network, deterministic, escaped, complete."""

import hashlib
import json
import re
from base64 import b64encode
from dataclasses import replace
from functools import reduce
from html import escape, unescape
from operator import getitem

import matplotlib
import numpy as np
import pytest

from simic.audit import figures, report
from simic.audit.audit import checks, examine, growth_sentence
from simic.audit.derived import derived_evaluation
from simic.audit.figures import panels_of
from simic.audit.findings import Status, Verdict, failing
from simic.audit.record import RunRecord, Table
from simic.errors import SimicError
from simic.evaluation.endpoints import COMMON, ORACLE_TASK
from simic.evaluation.result import Elsewhere

from .defects import DEFECTS, better, said, update
from .pages import Page
from .synthetic import params, with_bad_returns


@pytest.fixture(scope="module")
def verdict(clean):
    return examine(clean, "run-1")


@pytest.fixture(scope="module")
def panels(clean):
    return panels_of(clean)


@pytest.fixture(scope="module")
def page(clean, verdict, panels):
    return report.html(clean, verdict, panels)


@pytest.fixture(scope="module")
def parsed(page):
    return Page(page)


def test_page_loads_nothing_and_runs_nothing(page, parsed):
    assert not {"script", "iframe", "object", "link", "img", "embed"} & set(parsed.tags)
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
    assert "url(http" not in page and "@import" not in page


def test_content_security_policy_allows_exactly_its_own_style(page, parsed):
    [style] = re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    [policy] = [
        value for _, name, value in parsed.attributes if name == "content" and "src" in value
    ]
    assert policy.startswith("default-src 'none'; ")
    assert f"style-src-elem 'sha256-{digest}'" in policy and "script-src" not in policy


def test_page_is_small_and_has_no_other_date_than_the_runs(page):
    assert len(page.encode()) < 1_250_000
    dates = set(re.findall(r"20\d\d-\d\d-\d\d", page))
    assert dates == {"2031-05-06"}, "the run's own date alone: not that of the audit"


def test_ids_are_unique_and_references_stay_in_the_page(page, parsed):
    ids = [value for _, name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    links = [value for _, name, value in parsed.attributes if name in ("href", "xlink:href", "src")]
    assert all(link.startswith("#") for link in links)
    references = [link[1:] for link in links] + re.findall(r"url\(#([^)]+)\)", page)
    labels = [value for _, name, value in parsed.attributes if name == "aria-labelledby"]
    assert {*references, *" ".join(labels).split()} <= set(ids)


def test_every_figure_has_words(panels):
    assert len(panels) == 6
    for panel in panels:
        assert 'role="img"' in panel.inline
        assert re.search(rf'<desc id="{panel.name}-d">.{{20,}}</desc>', str(panel.inline))
        assert "<text" not in panel.document and "<dc:date>" not in panel.document, (
            "fonts must be paths"
        )
        assert "currentColor" in panel.inline and "currentColor" not in panel.document, (
            "ink follows the page"
        )


def test_page_and_markdown_begin_with_the_verdict_and_say_everything_that_was_examined(
    clean, verdict, page
):
    text = " ".join(Page(page).text)
    markdown = report.markdown(clean, verdict).replace("\\", "")
    for result in verdict.results:
        assert result.question in text
        assert result.status is Status.NOT_EVALUATED or result.threshold in text
    assert list(verdict.summary.lines) == ["what", "record", "replay", "learning"]
    for sentence in verdict.summary.lines.values():
        assert sentence in text and sentence in markdown
    assert page.index(escape(verdict.summary.what)) < page.index('id="findings"')


def test_the_four_lines_of_a_clean_run(clean, verdict):
    learned = clean.evaluation.standings["held_out"].policies["learned"]
    score, gain = (
        f"{value.estimate:.1f} [{value.low:.1f}, {value.high:.1f}]"
        for value in (learned.score, learned.over_rule)
    )
    lines = verdict.summary
    assert (
        lines.what
        == f"PPO scores {score} points on 6 held-out tasks of known kinds, {gain} more than the "
        + ("untuned hand rule.")
    )
    assert lines.record.startswith("The record is not proven: ")  # tables have no checkpoints
    assert lines.replay == "Training: equal (all bytes). Evaluation: equal (all bytes)."
    assert lines.learning.startswith("No finding: ")


def test_changed_code_stands_on_the_first_line(clean):
    """Files that had been changed when the run started: test_end_to_end.py."""
    later = replace(clean, provenance=replace(clean.provenance, code_changed_since=("agent",)))
    sentence = examine(later, "x").summary.what
    assert sentence.startswith("The code has changed since the run (agent). PPO scores ")


def test_the_sentence_is_made_of_numbers_that_were_derived_again(clean, plant):
    """Edit the estimate alone: the sentence would still say the true one, and the record is not sound."""
    claimed = said(better)(plant).run
    derived = derived_evaluation(claimed)
    assert (
        growth_sentence(derived)
        == growth_sentence(clean.evaluation)
        != growth_sentence(claimed.evaluation)
    )
    verdict = examine(claimed, "x")
    assert verdict.unsound == ("X8",) and verdict.summary.what.startswith("The result is withheld")
    assert verdict.summary.record.startswith("The record is not sound: 1 of ")
    assert verdict.summary.record.endswith("(X8).")


@pytest.mark.parametrize("outcome", ["differs", "not possible"])
def test_the_verdict_says_what_a_replay_came_to(outcome, clean):
    training, evaluation = clean.replays()
    replay = training.model_copy(update={"outcome": outcome, "detail": "why"})
    verdict = examine(replace(clean, replays=lambda: (replay, evaluation)), "x")
    assert verdict.summary.replay.startswith(f"Training: {outcome} (why).")
    assert verdict.unsound == (("Z1",) if outcome == "differs" else ())


def test_the_validation_that_chose_the_checkpoint_is_shown_by_iterations_done(plant, verdict):
    validated = update("validation_accuracy", [7, 15, 23], (70.0, 72.5, 72.5))(plant)
    run = update("best_iteration", slice(None), 16.0)(validated).run
    page = report.html(run, verdict, ())
    rows = re.findall(
        r'<tr><td class="n">(\d+)</td><td class="n">([\d.]+)</td><td>(best)?</td></tr>', page
    )
    assert rows == [("8", "70.00", ""), ("16", "72.50", "best"), ("24", "72.50", "")]


def test_provenance_is_what_was_sealed_whatever_the_params_are_now(clean, verdict):
    tree = clean.params.model_copy(update={"rng_seed": 77})
    page = report.html(replace(clean, params=tree), verdict, ())
    assert "rng_seed 1<" in page and "rng_seed 77" not in page
    rows = dict(report.provenance_rows(clean))
    assert rows["training started"] == "2031-05-06 07:08:09 UTC" and rows["changed files"] == "none"
    # An edited seal costs its params and not the report.
    edited = replace(clean.provenance, params={"prepare": {"task": "nonsense"}, "train": 3})
    assert "params not recorded" in report.html(replace(clean, provenance=edited), verdict, ())


def cells(page, section):
    """Text of the cells of a section's tables, by their row's first one."""
    inside = page[page.index(f'id="{section}"') :].split("</section>")[0]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', inside)
    return [(unescape(name), re.findall(r"<td[^>]*>(.*?)</td>", rest)) for name, rest in rows]


def numbers(text):
    return [float(number) for number in re.findall(r"[-+]?[\d.]+", text)]


def rounded(interval, digits, unit=1):
    return [
        round(unit * value, digits) for value in (interval.estimate, interval.low, interval.high)
    ]


def test_numbers_of_the_gap_are_those_of_the_evaluation(page, clean):
    shown = iter(cells(page, "gap"))
    for standings in clean.evaluation.standings.values():
        for policy in standings.policies.values():
            _, (score, over_rule, over, params) = next(shown)
            assert numbers(score) == rounded(policy.score, 1)
            assert numbers(over_rule) == (rounded(policy.over_rule, 1) if policy.over_rule else [])
            assert numbers(over) == rounded(policy.over_common, 1)
            assert params == report.count(policy.params)


def test_the_table_of_lengths_has_the_scores_of_every_length(clean):
    # The shorter episodes have the learned policy where the static one stood.
    shorter = {
        group: standings.model_copy(
            update={"policies": {**standings.policies, "learned": standings.policies["static"]}}
        )
        for group, standings in clean.evaluation.standings.items()
    }
    other = Elsewhere(epochs=4, per_seed={}, standings=shorter)
    evaluation = clean.evaluation.model_copy(update={"others": {"4 epochs": other}})
    lengths = {4: shorter, evaluation.episode_steps: evaluation.standings}
    rows = report._by_length(evaluation)
    assert [row["epochs"] for row in rows] == [4] * len(shorter) + [6] * len(shorter)
    for row in rows:
        standings = lengths[row["epochs"]][row["group"]]
        names = {"learned": "learned", "rule": standings.rule}
        names |= {"common": COMMON, "oracle": ORACLE_TASK}
        for column, name in names.items():
            assert row[column] == standings.policies.get(name), (column, row["epochs"])


@pytest.mark.parametrize(("over", "outcome"), [(2.0, "above"), (0.0, "level"), (-2.0, "below")])
def test_the_colour_of_the_result_is_not_that_of_the_proof(plant, verdict, over, outcome):
    """A policy below the hand rule may have a sound record."""
    interval = {"estimate": over, "low": over - 0.5, "high": over + 0.5}
    path = ("standings", "held_out", "policies", "learned")
    run = said(lambda tree: reduce(getitem, path, tree).update(over_rule=interval))(plant).run
    assert f'<dl class="verdict {outcome}">' in report.html(run, verdict, ())


def test_findings_come_worst_first_and_unevaluated_are_no_pass(plant):
    (_, low), (_, critical) = DEFECTS["E1"][3], DEFECTS["R1"][0]
    run = with_bad_returns(low(critical(plant)).run)
    verdict = examine(run, "damaged")
    findings = [finding for finding in verdict.findings if finding.check[0] in "RE"]
    assert [finding.check for finding in findings] == ["R1", "E1"]
    unknown = {result.check for result in verdict.with_status(Status.NOT_EVALUATED)}
    lacking = {"checkpoints", "meta", "splits"}  # the run on tables has none
    assert {check.id for check in checks(is_gym=False) if lacking & {*check.needs}} <= unknown
    page = report.html(run, verdict, ())
    first, second = (page.index(finding.title) for finding in findings)
    assert first < second


def test_a_record_that_is_not_sound_withholds_every_result(plant):
    """P5: the rewards are not what they are said to be."""
    _, damage = DEFECTS["P5"][0]
    run = damage(plant).run
    verdict = examine(run, "unsound")
    assert verdict.unsound == ("P5",)
    page, plain = (
        report.html(run, verdict, panels_of(run, sound=False)),
        report.markdown(run, verdict),
    )
    accuracy = f"{run.evaluation.policies['learned'].test_accuracy_pct.estimate:.2f}"
    for text in (page, plain):
        assert (
            "The result is withheld, since the record does not hold or a replay differs (P5)."
            in text
        )
        assert "Withheld, since the record does not hold." in text
        assert accuracy not in text and "The oracle is" not in text


def test_parameters_of_a_task_are_words(clean, verdict):
    nested = {"rule": {"first": [7, 9], "signs": [-1]}, "cuts": (), "shape": {}, "noise": 0.06}
    assert report.cell(nested) == "rule first 7 9, signs -1, cuts none, shape none, noise 0.06"


def test_the_largest_gain_and_the_largest_loss_are_open(clean, verdict):
    [case, *_] = clean.evaluation.cases
    scores = (90.0, 80.0, 45.0, 30.0)
    cases = tuple(case.model_copy(update={"score": score, "common": 50.0}) for score in scores)
    run = replace(clean, evaluation=clean.evaluation.model_copy(update={"cases": cases}))
    page = report.html(run, verdict, ())
    closed = re.findall(r"<summary>([+-][\d.]+) points on", page)
    assert closed == ["+30.0", "-5.0"]


def test_what_was_found_while_it_trained_is_in_the_report(clean, verdict):
    row = {"severity": "high", "check": "R2", "message": "ratios explode"}
    columns = {name: np.array([text], dtype=object) for name, text in row.items()}
    run = replace(clean, live_findings=Table({"iteration": np.array([4]), **columns}))
    assert "ratios explode" in report.html(run, verdict, ())
    assert "- iteration 5, high, R2: ratios explode" in report.markdown(run, verdict)


def test_report_of_a_bare_run_is_whole(verdict):
    """Report a run without telemetry, evaluation and provenance: nothing fails, nothing passes."""
    bare = RunRecord(params())
    bare_verdict = examine(bare, "bare")
    assert not bare_verdict.with_status(Status.PASS)
    assert bare_verdict.summary.record.startswith("The record is not proven: 0 of ")
    assert '"record_sound": 0' in bare_verdict.metrics()
    page = report.html(bare, bare_verdict, panels_of(bare))
    Page(page)
    assert page.count("The policy was not evaluated.") == 3
    assert "The policy was not evaluated." in report.markdown(bare, bare_verdict)


def test_write_makes_every_file_again_alike_whatever_matplotlib_is_set_to(
    clean, verdict, panels, page, tmp_path
):
    folder = tmp_path / "reports"
    with matplotlib.rc_context(
        {"font.size": 30, "svg.hashsalt": None, "axes.facecolor": "red", "lines.linewidth": 9}
    ):
        report.write(clean, verdict, folder)
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert files.keys() >= {"report.md", "figures/learning.svg"}
    assert files["report.html"] == page.encode()
    assert all(files[f"figures/{panel.name}.svg"] == panel.document.encode() for panel in panels)
    assert Verdict.from_json(files["findings.json"]) == verdict
    assert json.loads(files["findings.json"])["schema_version"] == 6
    unknown = len(verdict.with_status(Status.NOT_EVALUATED))
    numbers = {**verdict.counts(), "not_evaluated": unknown, "record_sound": 0, "replays_equal": 2}
    assert json.loads(files["audit_metrics.json"]) == numbers


def test_a_place_that_cannot_be_written_is_named(clean, verdict, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "panels_of", lambda run, sound: ())
    (tmp_path / "reports").write_text("in the way")
    with pytest.raises(
        SimicError, match=r"reports: cannot be written: .*; earlier reports are kept"
    ):
        report.write(clean, verdict, tmp_path / "reports")


def test_fail_on_takes_the_named_severity_and_worse_and_nothing_that_was_not_evaluated(plant):
    (_, high), (_, medium) = DEFECTS["H1"][0], DEFECTS["R2"][1]
    results = examine(with_bad_returns(medium(high(plant)).without("provenance")), "x").results
    expected = {
        "never": [],
        "critical": [],
        "high": ["H1"],
        "medium": ["H1", "R2"],
    }  # and X8, since comparisons were taken out
    assert {
        limit: sorted(r.check for r in failing(results, limit) if r.check != "X8")
        for limit in expected
    } == expected
