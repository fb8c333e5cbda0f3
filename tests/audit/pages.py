"""Numbers on a report's page, by section, that are in none of the files it was made from."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from typing import get_args

from simic.audit import known
from simic.audit.findings import Layer

# A number with its sign, thousands, decimals, exponent and unit.
NUMBER = re.compile(r"(?<![\w.])([-+]?)(\d[\d,]*(?:\.\d+)?)(?:e([-+]?\d+))?( [kMGT](?!\w))?")
UNITS = {None: 1.0, " k": 1e3, " M": 1e6, " G": 1e9, " T": 1e12}
VOID = ("meta", "br", "link", "img")
OF_NO_RUN = {"95 %", "1,000 parameters"}  # the confidence of every interval; a unit


class Page(HTMLParser):
    """Collect tags, attributes and text of a page; fail on tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], [], []
        self.sections, self.section = {}, "result"
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag == "section":
            self.section = dict(attributes)["aria-labelledby"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if "style" not in self.open:
            self.sections.setdefault(self.section, []).append(data)


def leaves(value):
    """Return all numbers and texts of a JSON value, keys of objects among them."""
    if isinstance(value, dict):
        return [*value, *(leaf for each in value.values() for leaf in leaves(each))]
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in leaves(each)]
    return [value]


def sources(run, verdict, provenance):
    """Return the values that each section may show, from telemetry, findings.json, evaluation.json and provenance."""
    findings, evaluation = json.loads(verdict.to_json()), json.loads(run.evaluation.to_json())
    ended = [list(Counter(each.status for each in verdict.results if each.layer == layer).values())
             for layer in get_args(Layer)]  # fmt: skip
    totals = list(Counter(each.status for each in verdict.results).values())
    policies = {
        name: {key: value for key, value in policy.items() if key != "per_seed"}
        for name, policy in evaluation["policies"].items()
    }
    setting = {key: value for key, value in evaluation.items() if isinstance(value, int | str)}
    committed = run.episodes.column("committed_accuracy").mean(axis=1).tolist()
    last = [values[-1].item() for values in run.updates.columns.values() if values.dtype.kind == "f"]
    steps = run.steps.where(run.steps.column("iteration") == run.steps.column("iteration").max())
    paid = [values.sum(axis=0).mean().item() for values in steps.below("components").values()]
    told = [run.told.columns, len(verdict.findings)]
    return {
        "result": [findings["run"], provenance, verdict.summary, policies, evaluation["standings"], setting, committed],
        "proof": [findings["results"], ended, verdict.summary, sum(map(sum, ended[:-1]))],
        "findings": [findings["results"], told, totals, ended[-1]],
        "learning": [last, paid],
        "growth": [evaluation["cases"], evaluation["tasks"], [case.gain for case in run.evaluation.cases]],
        "scoreboard": [findings["scoreboard"]],
        "why": why(evaluation),
        "evaluation": [policies, evaluation["comparisons"], evaluation["host"], setting],
        "known": [known.shipped().model_dump(mode="json"), known.shipped().sentence],
        "provenance": [findings["run"], provenance],
    }


def why(evaluation):
    """Return grades, and single decisions with their scores."""
    grades = evaluation["counterfactuals"]
    decisions = [each for grade in grades.values() for each in grade["decisions"]]
    shares = [grade[name] for grade in grades.values() for name in ("best", "chance")]
    gains = [each["taken"]["score"] - max(other["score"] for other in each["others"]) for each in decisions]
    steps = [each["step"] + 1 for each in decisions]
    counts = [len(grade["decisions"]) for grade in grades.values()]
    tasks = [task["name"] for task in evaluation["tasks"]]
    return [grades, [100 * share for share in shares], gains, steps, counts, tasks]


def unexplained(page, found):
    """Return the numbers of each section that are not in its sources."""
    strange = {}
    for section, texts in Page(page).sections.items():
        text = " ".join(texts)
        for phrase in OF_NO_RUN:
            text = text.replace(phrase, "")
        known = leaves(found[section])
        said = {match[0] for leaf in known if isinstance(leaf, str) for match in NUMBER.finditer(leaf)}
        numbers = [float(leaf) for leaf in known if isinstance(leaf, int | float) and not isinstance(leaf, bool)]
        numbers += [100 * number for number in numbers] if section == "result" else []  # shares
        numbers += [number + 1 for number in numbers if number == int(number)] if section == "growth" else []  # steps
        missing = [m[0] for m in NUMBER.finditer(text) if m[0] not in said and not any(rounds(m, n) for n in numbers)]
        if missing:
            strange[section] = missing
    return strange


def rounds(match, number):
    """Tell whether the number, rounded to the written precision, is what is written."""
    sign, digits, exponent, unit = match.groups()
    scale = UNITS[unit] * 10 ** int(exponent or 0)
    written = float(sign + digits.replace(",", "")) * scale
    half = 0.5 * 10 ** -len(digits.partition(".")[2]) * scale
    return abs(written - number) <= half * (1 + 1e-9)
