"""Style and rendering of figures: equal bytes for equal data, readable in light, dark, grey and print.

Text is drawn as paths, ids are salted with a constant, there is no date. Ink is one sentinel colour that becomes
``currentColor`` inside the report and black on white in a file of its own.
"""

import io
import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.typing import RcKeyType

from simic.errors import printable

# Okabe and Ito (2008), without yellow, which vanishes on white.
BLUE, ORANGE, GREEN, RED, PINK, SKY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
)
GREY = "#8a8f94"  # 3:1 on white and on the dark page
INK = "#010203"  # the sentinel; nothing else uses it
WIDTH_INCHES = 4.5  # as wide as a telephone: its letters keep their size there

STYLE: dict[RcKeyType, object] = {
    "svg.hashsalt": "simic",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",  # shipped with matplotlib, so the same everywhere
    "text.parse_math": False,  # a dollar in a name is a dollar
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # no search for a place above tick labels, of which there are none
    "axes.titleweight": "bold",
    "axes.labelsize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.25,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "hatch.color": INK,
    "hatch.linewidth": 0.4,
}


def new_figure(
    height_inches: float, heights: Sequence[float] = (1.0,)
) -> tuple[Figure, list[Axes]]:
    """Make an empty figure of the report's width and its plots, one below the other with these relative heights on
    one x axis.
    """
    # Figure and not pyplot, which keeps every figure in memory and may open a window.
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    plots = figure.subplots(len(heights), squeeze=False, sharex=True, height_ratios=heights)
    return figure, list(plots[:, 0])


class Panel(NamedTuple):
    """Hold one figure as an element of the page and as a file; ``description`` says in words what it shows."""

    name: str
    description: str
    inline: Markup
    document: str


def panel(name: str, title: str, description: str, figure: Figure) -> Panel:
    """Render a figure that was drawn in the report's style.

    Args:
        name: of the file, and the beginning of the ids in the page.
        title: of the text alternative.
        description: what the figure shows, in words.
        figure: drawn while the style was in force.
    """
    # Rendered once for both forms, so that page and file never differ.
    rendered = render(figure)
    text = printable(description)
    return Panel(name, text, Markup(svg_element(rendered, name, title, text)), svg_file(rendered))


def render(figure: Figure) -> str:
    """Render a figure as SVG with sentinel ink."""
    stream = io.StringIO()
    # Not savefig, which draws twice: once to lay out, once to write.
    FigureCanvasSVG(figure).print_svg(stream, metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def svg_element(rendered: str, name: str, title: str, description: str) -> str:
    """Turn a rendered figure into an ``<svg>`` element of the report: ink follows the page, ids begin with ``name``,
    title and description are its text alternative.

    Args:
        rendered: the whole document of ``render``.
        name: what the ids begin with; once in a page.
        title: is escaped.
        description: is escaped.
    """
    # A page may have one document type only, so that what comes before the element is cut off.
    text = rendered[rendered.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(
        r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL
    )  # the page's stylesheet says it once
    text = text.replace(INK, "currentColor")
    # Ids are one name space of the whole page: without a prefix a figure would use the clip paths of another.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    label = f'role="img" aria-labelledby="{name}-t {name}-d"'
    words = f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(description)}</desc>'
    # A title counts as that of the whole figure only where it is the first child of the element.
    opening, rest = text.split(">", 1)
    return f"{opening} {label}>{words}{rest}"


def svg_file(rendered: str) -> str:
    """Turn a rendered figure into a document: black on white, so that it reads on any page."""
    # The white page comes first, since SVG paints in the order of the document.
    start = rendered.index(">", rendered.index("<svg")) + 1
    page = '\n <rect width="100%" height="100%" fill="#ffffff"/>'
    return (rendered[:start] + page + rendered[start:]).replace(INK, "#000000")


def legend_below(figure: Figure, handles: Sequence[Line2D], columns: int = 2) -> None:
    """Add one legend under all axes.

    Args:
        figure: what the legend belongs to.
        handles: marks and lines with their labels, in order.
        columns: side by side; more do not fit where labels are long.
    """
    figure.legend(
        handles=list(handles), loc="outside lower center", ncols=columns, fontsize=8.0, columnspacing=1.2,
        handletextpad=0.4,
    )  # fmt: skip
