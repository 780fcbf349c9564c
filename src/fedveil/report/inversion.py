"""The page of ``fedveil demo inversion``: true examples, and what a server makes of the uploads."""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from fedveil.core.errors import Refused
from fedveil.report.picture import picture, plane
from fedveil.report.shell import document, save, sections
from fedveil.report.words import table, words
from fedveil.runtime.inversion import Inversion, View

HOW = """
<p>In federated learning examples never leave a client; moves of the model do. Where the model begins with a linear
layer, the move after one step on one example holds the example itself: every row of the weight's move, beside the bias,
is a multiple of it. The server computes a singular vector and looks at the picture. No training, no guessing.</p>
<p>Each row below is one way to protect the upload. The same clients, the same examples, the same initial model.</p>
"""
LESSONS = """
<ul>
<li>Keeping data where it is protects nothing by itself.</li>
<li>A clip alone hides nothing: it shortens the gradient, and its direction is the example.</li>
<li>More examples in a step mix their pictures, and hide few of them: neurons that one example alone excites still show
it, two of them agree on it, and so the server knows it for certain. Optimisation finds even more.</li>
<li>A huge ε is a number and no protection. Noise for a small ε leaves nothing to see, and the privacy statement says
how little anybody can ever find out.</li>
<li>Secure aggregation shows the server one sum. A sum of many digits resembles every digit a little, which is why
likeness is not small there, but nobody's example is picked out. It limits who sees what; it is no guarantee about the
sum itself.</li>
</ul>
"""


def write_inversion_page(path: Path, found: Inversion) -> Path:
    """Write the page to ``path`` and return it."""
    try:
        save(path, inversion_page(found))
    except OSError as error:
        raise Refused(f"--out: cannot write {path} ({error.strerror}); give another path") from None
    return path


def inversion_page(found: Inversion) -> str:
    """The whole page."""
    clients = len(found.originals)
    true = [picture(plane(x, found.shape), f"example of client {k}") for k, x in enumerate(found.originals)]
    rows = [("<strong>true example</strong>", *true)]
    for view in found.views:
        rows.append((_name(view), *(_cell(found, view, k) for k in range(clients))))
    parts = {
        "how": HOW,
        "pictures": table(("Protection", *(f"Client {k}" for k in range(clients))), rows),
        "numbers": _numbers(found),
        "lessons": LESSONS,
    }
    lead = f"{words(found.model)} on {words(found.data)}: what a server makes of the first round's uploads"
    return document("Gradient inversion", lead, sections(parts), [], nav=parts, kind="demonstration")


def _name(view: View) -> str:
    return f"<strong>{words(view.protection.name)}</strong><br><small>{words(view.protection.words)}</small>"


def _cell(found: Inversion, view: View, client: int) -> str:
    shown = picture(plane(view.pictures[client], found.shape), f"{view.protection.name}, client {client}")
    return f"{shown}<br><small>{view.likeness[client]:+.2f}</small>"


def _numbers(found: Inversion) -> str:
    rows = [
        (
            words(v.protection.name),
            f"{_mean(v):.2f}",
            f"{v.picked} of {len(v.likeness)}",
            f"{v.exact} of {v.held}",
            "–" if v.sigma is None else f"{v.sigma:.3g}",
        )
        for v in found.views
    ]
    heads = ("Protection", "Mean likeness", f"Picked out of {found.candidates}", "Read exactly", "Noise multiplier")
    about = (
        "<p>Likeness is the correlation of the clearest picture with the true example, 1 being perfect. Picked: the "
        f"true example is more like the picture than {found.candidates - 1} others are; by chance that happens once in "
        f"{found.candidates}. Read exactly: of all examples in these uploads.</p>"
    )
    return about + table(heads, rows)


def _mean(view: View) -> float:
    return sum(view.likeness) / len(view.likeness)


def show_inversion(console: Console, found: Inversion, page: Path) -> None:
    """The outcome on the terminal."""
    shown = Table(
        "protection", "likeness", f"picked out of {found.candidates}", "read exactly", "what it is", box=SIMPLE
    )
    for v in found.views:
        picked, exact = f"{v.picked} of {len(v.likeness)}", f"{v.exact} of {v.held}"
        shown.add_row(v.protection.name, f"{_mean(v):.2f}", picked, exact, v.protection.words)
    console.print(shown)
    console.print(f"page with the pictures: {page}", highlight=False, soft_wrap=True, markup=False)
