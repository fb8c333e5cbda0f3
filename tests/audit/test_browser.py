"""The report in a browser: it asks for nothing, runs nothing, is legible at every width, in light, dark and print."""

import pytest

from simic.audit import report
from simic.audit.audit import examine
from simic.audit.panels import panels_of

from . import browser
from .defects import DEFECTS
from .synthetic import Plant

pytestmark = pytest.mark.skipif(not browser.PROGRAM, reason="no chromium on PATH")

LEGIBLE = 0.8  # of the size a figure is drawn at: its smallest letters, 7.5 points, are then 8 pixels high


@pytest.fixture(scope="module")
def page(clean, tmp_path_factory):
    """Of a run with findings."""
    _, low = DEFECTS["E1"][3]
    run = low(Plant(clean)).run
    path = tmp_path_factory.mktemp("browser") / "report.html"
    path.write_text(report.html(run, examine(run, "run-1"), panels_of(run)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser.tab(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_asks_for_nothing_complains_of_nothing_and_fits(width, scheme, page, tab):
    tab.open(page, width, scheme)
    assert tab.asked_for == [page.as_uri()]
    assert tab.complaints == []
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value("document.querySelectorAll('figure svg').length") == 10


def test_what_a_page_should_not_do_would_be_noticed(page, tab, tmp_path):
    bad = tmp_path / "bad.html"
    smuggled = '<script>document.title = "run"</script><img src="http://127.0.0.1:9/x.png"></main>'
    bad.write_text(page.read_text(encoding="utf-8").replace("</main>", smuggled), encoding="utf-8")
    tab.open(bad, 1280)
    assert tab.value("document.title") == "Audit of run-1", "refused by the content security policy"
    assert len(tab.complaints) == 2
    assert len(tab.asked_for) == 2, "the browser tells what it was about to ask for"


def test_every_figure_is_legible_on_a_telephone_and_has_a_text(page, tab):
    tab.open(page, 400)
    drawn = tab.value(
        "[...document.querySelectorAll('figure svg')].map(svg => [svg.querySelector('desc').textContent, "
        "svg.getBoundingClientRect().width / (svg.viewBox.baseVal.width * 4 / 3)])"
    )
    assert [scale for _, scale in drawn if scale < LEGIBLE] == []
    assert [text for text, _ in drawn if len(text) < 20] == []


COLOURS = "[document.body, document.querySelector('h2')].map(each => getComputedStyle(each))"


def test_dark_is_dark_and_light_is_light(page, tab):
    seen = {}
    for scheme in ("light", "dark"):
        tab.open(page, 1280, scheme)
        seen[scheme] = tab.value(f"{COLOURS}.map((style, i) => i ? style.color : style.backgroundColor)")
    assert seen == {
        "light": ["rgb(255, 255, 255)", "rgb(27, 31, 36)"],
        "dark": ["rgb(20, 23, 26)", "rgb(230, 233, 236)"],
    }


def test_on_paper_everything_is_open_black_on_white(page, tab):
    shown = "document.querySelector('#passed table').checkVisibility({contentVisibilityAuto: true})"
    tab.open(page, 800, "dark")
    assert not tab.value(shown)
    tab.open(page, 800, "dark", medium="print")
    assert tab.value(shown)
    assert tab.value(f"{COLOURS}.map((style, i) => i ? style.color : style.backgroundColor)") == [
        "rgb(255, 255, 255)",
        "rgb(0, 0, 0)",
    ]


A4_PIXELS = 718  # between margins of a centimetre


def test_on_paper_no_table_is_cut_off_and_letters_have_one_scale(page, tab):
    tab.open(page, A4_PIXELS, medium="print")
    cut = "[...document.querySelectorAll('.scroll')].filter(each => each.scrollWidth > each.clientWidth)"
    assert tab.value(f"{cut}.map(each => each.textContent.slice(0, 80))") == []
    sizes = "[...document.querySelectorAll('html, body')].map(each => getComputedStyle(each).fontSize)"
    assert len(set(tab.value(sizes))) == 1


def test_every_planted_fault_has_room_for_its_words(page, tab):
    tab.open(page, 1280)
    tab.value("document.querySelector('#faults').open = true")
    widths = tab.value("[...document.querySelectorAll('#faults td')].map(each => each.getBoundingClientRect().width)")
    assert widths and min(widths) > 300
