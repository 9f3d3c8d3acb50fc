"""Make the validation pages: one per task, with problem, method, error, time and picture.

    python validation/physics.py              every task
    python validation/physics.py wave1d-c ks  some

Figures are those of `poise solve TASK --json -` on the machine that runs this script.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import numpy as np

from poise.errors import BadInput
from poise.physics.tasks import get, names, run

PAGES = Path(__file__).parent / "pages"

PAGE = """# {title}

`poise solve {name}`

{statement}

| | |
|---|---|
| method | {method} |
| reference | {reference} |
| relative L2 error | {rel_l2:.1e} |
| estimated error | {error_estimate:.1e} |
| seconds, warm / first call | {seconds:.2f} / {first_seconds:.2f} |
| features | {features} |
| points | {points} |
| status | {status} |

{notes}![{name}]({name}.png)
"""


def statement(task) -> str:
    """What the problem's builder says about itself."""
    builder = task.problem
    if builder.__name__ == "<lambda>":
        called = [value for key, value in builder.__globals__.items() if key in builder.__code__.co_names]
        builder = next((value for value in called if inspect.isfunction(value) and value.__doc__), builder)
    return inspect.getdoc(builder) or ""


def shrink(path: Path) -> None:
    """Write a picture with 64 colours, to keep it below 60 kB."""
    from PIL import Image

    with Image.open(path) as image:
        image.convert("RGB").quantize(64).save(path, optimize=True)


def page(name: str) -> str:
    """Solve one task, write its page and picture, and return its line in the index."""
    task = get(name)
    report, solution = run(task)
    picture = PAGES / f"{name}.png"
    if len(task.built.domain.axes) <= 3:
        solution.plot(picture)
        shrink(picture)
    text = PAGE.format(
        title=task.title,
        name=name,
        statement=statement(task),
        notes=f"{task.notes[0].upper()}{task.notes[1:]}.\n\n" if task.notes else "",
        **{key: value for key, value in report.items() if key != "task"},
    )
    if not picture.exists():
        text = text[: text.index("![")].rstrip() + "\n"
    (PAGES / f"{name}.md").write_text(text)
    ratio = report["error_estimate"] / report["rel_l2"] if report["rel_l2"] else np.inf
    return (
        f"| [{name}]({'pages/' + name}.md) | {report['rel_l2']:.1e} | {ratio:.2g} | {report['seconds']:.2f} "
        f"| {report['first_seconds']:.2f} | {report['reference']} |"
    )


def main(wanted: list[str]) -> None:
    """Write the pages and print the index' lines."""
    import matplotlib as mpl

    mpl.use("Agg")
    PAGES.mkdir(exist_ok=True)
    for name in wanted or names():
        try:
            print(page(name), flush=True)
        except BadInput as error:
            print(f"| {name} | skipped: {error} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
