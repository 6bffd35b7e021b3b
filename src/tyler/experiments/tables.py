"""Tables as Markdown, LaTeX (booktabs) and CSV: one table, three texts, and under each what it is made of."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from tyler.evaluation.reports import markdown_row

MISSING = "–"
"""A number that has not been measured."""
ESCAPED = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "–": "--", "±": r"$\pm$", "Δ": r"$\Delta$"}


@dataclass(frozen=True)
class Table:
    """`rows` of text under `columns`. `name` is its file's, `ruled` are the rows that a line is drawn above."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    ruled: tuple[int, ...] = ()


def markdown(table: Table, note: Sequence[str]) -> str:
    """As GitHub shows it."""
    lines = [f"## {table.caption}", "", markdown_row(table.columns), markdown_row(["---"] * len(table.columns))]
    return "\n".join([*lines, *map(markdown_row, table.rows), "", *note]) + "\n"


def latex(table: Table, note: Sequence[str]) -> str:
    """A `table` environment that needs the package booktabs; the note is a comment above it."""
    body = []
    for place, row in enumerate(table.rows):
        body += [r"  \midrule"] * (place in table.ruled)
        body.append(f"  {' & '.join(map(escaped, row))} \\\\")
    return "\n".join(
        [
            *(f"% {line}" for line in note),
            r"\begin{table}[t]",
            r"  \centering\small",
            rf"  \begin{{tabular}}{{l{'c' * (len(table.columns) - 1)}}}",
            r"  \toprule",
            f"  {' & '.join(map(escaped, table.columns))} \\\\",
            r"  \midrule",
            *body,
            r"  \bottomrule",
            r"  \end{tabular}",
            rf"  \caption{{{escaped(table.caption)}}}",
            rf"  \label{{tab:{table.name}}}",
            r"\end{table}",
            "",
        ]
    )


def escaped(text: str) -> str:
    """Plain text for LaTeX."""
    return "".join(ESCAPED.get(letter, letter) for letter in text)


def comma_separated(table: Table, note: Sequence[str]) -> str:
    """CSV, with the note in lines that begin with #."""
    out = io.StringIO()
    out.writelines(f"# {line}\n" for line in note)
    csv.writer(out, lineterminator="\n").writerows([table.columns, *table.rows])
    return out.getvalue()


WRITERS = {"md": markdown, "tex": latex, "csv": comma_separated}
"""By the ending of the file."""
