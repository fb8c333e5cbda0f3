"""Text that a run brings along, in every place where it may, does nothing in the report but stand there."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from simic.audit import report
from simic.audit.audit import examine
from simic.audit.figures import panels_of
from simic.audit.findings import Verdict
from simic.audit.provenance import Origin
from simic.audit.record import Table
from simic.errors import SimicError, printable
from simic.evaluation.result import Evaluation

from .defects import DEFECTS
from .pages import Page
from .synthetic import Plant

PAYLOADS = (
    '<script>alert("x")</script>', "<img src=x onerror=alert(1)>", '"><svg onload=alert(1)>', "</style><b>",
    "{{ 7 * 7 }}", "javascript:alert(1)", "<!-- ", "]]>", "&lt;b&gt;", "' style='position:fixed", "http://evil.example/?q",
    "www.evil.example", "me@evil.example", "[text](http://evil.example)", "![](http://evil.example/x.png)",
    "[x]: http://evil.example", "<http://evil.example>", "a | b | c", "`code`", "*bold* _em_ ~~gone~~", "# heading",
    "line\nbreak\n\n- list\n\n```\nfence", "\x1b[31mred\x1b]0;title\x07", "\x9b2J", "\r overwritten", "\u202egnp.exe",
    "\u200bzero", "$x^2$ $\\frac{$", "\\", "\x00", "%s %d", "_hidden", "ünïcödé × ≤",
)  # fmt: skip
hostile = st.sampled_from(PAYLOADS) | st.lists(
    st.sampled_from(PAYLOADS), min_size=2, max_size=3
).map(" ".join)
COMMONMARK = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def renamed(tree, old, new):
    """Return a JSON value with some keys and texts replaced."""
    if isinstance(tree, dict):
        return {new if key == old else key: renamed(value, old, new) for key, value in tree.items()}
    if isinstance(tree, list):
        return [renamed(value, old, new) for value in tree]
    return new if tree == old else tree


# Names of tasks, kinds, blueprints, schedules, policies, observations and parameters of tasks.
NAMES = ("kind-0/0", "kind-0", "norm", "norm at slot 1", "patient", "contribution", "noise")


def brought(run, text):
    """Put that text wherever text can come from data, extensions, params or the machine."""
    tree = json.loads(run.evaluation.to_json())
    for name in NAMES:
        tree = renamed(tree, name, f"{name}{text}")
    finding = Table({"iteration": np.array([1]), "severity": np.array(["high"], dtype=object),
                  "check": np.array([text], dtype=object), "message": np.array([text], dtype=object)})  # fmt: skip
    provenance = replace(
        run.provenance, origin=Origin(text, None, text, text, (text,)), versions={text: text}, hardware={text: text},
        params=run.provenance.params | {"prepare": {"task": "npz", "source": f"a{text}.npz"}},
    )  # fmt: skip
    return replace(
        run,
        evaluation=Evaluation.model_validate(tree),
        live_findings=finding,
        provenance=provenance,
    )


def measured(verdict, text):
    """Put that text into measured values and evidence of findings."""
    changed = {"measured": text, "evidence": ({text: text},)}
    results = tuple(
        row.model_copy(update=changed if row.check in ("P5", "E1") else {})
        for row in verdict.results
    )
    return Verdict(run=text, results=results, summary=verdict.summary)


@pytest.fixture(scope="module")
def audited(clean):
    """Return a run with two findings."""
    (_, low), (_, critical) = DEFECTS["E1"][3], DEFECTS["P5"][0]
    return low(critical(Plant(clean))).run


def said(run, text):
    run = brought(run, text)
    verdict = measured(examine(run, text), text)
    return report.html(run, verdict, ()), report.markdown(run, verdict)


def blocks(markdown):
    """Count the tokens of each kind that a Markdown reader finds."""
    tokens = COMMONMARK.parse(markdown)
    return Counter(part.type for token in tokens for part in (token, *(token.children or ())))


@pytest.fixture(scope="module")
def harmless(audited):
    page, markdown = said(audited, "harmless")
    return Counter(Page(page).tags), blocks(markdown)


@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=hostile)
def test_nothing_becomes_markup_or_a_control_character(text, audited, harmless):
    page, markdown = said(audited, text)
    tags, marks = harmless
    parsed = Page(page)
    assert Counter(parsed.tags) == tags
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
    assert printable(text) in "".join(parsed.text), "it stands there"
    kinds = blocks(markdown)
    texts = {"text", "text_special"}  # a backslash splits a text
    assert {kind: n for kind, n in kinds.items() if kind not in texts} == {
        kind: n for kind, n in marks.items() if kind not in texts
    }
    for address in ("://evil", "www.evil", "me@evil"):  # some programs make links of these
        assert address not in markdown
    for output in (page, markdown):
        assert all(character.isprintable() or character == "\n" for character in output)


def test_figures_draw_names_letter_by_letter(clean):
    """Draw a dollar as a dollar; escape descriptions."""
    panels = panels_of(brought(clean, "$x^2$ $\\frac{$ <b>&\"' \x1b[31ma\nb"))
    assert len(panels) == 6
    for panel in panels:
        Page(str(panel.inline))
        assert all(character.isprintable() or character == "\n" for character in panel.inline)


@pytest.mark.parametrize("text", PAYLOADS)
def test_an_error_says_nothing_that_acts_on_a_terminal_wherever_it_is_logged(text):
    """MLflow, Prefect and processes of a study log it as it is."""
    error = SimicError(f"params.yaml: key {text}: unknown")
    assert str(error).isprintable() and printable(text) in str(error)
    assert (printable(text) == text) is text.isprintable()
