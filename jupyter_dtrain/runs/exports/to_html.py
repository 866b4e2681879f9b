"""Write a run as one self-contained HTML file to share, without scripts.

Charts are SVG of thinned curves. All text of the run is escaped, as it may come from anyone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from html import escape

from ...protocol import CurveSummary, Points
from ..curves import OF_DEVICES
from ..record import RunRecord
from ..run_progress import duration
from ..store import RunStore
from ..svg_chart import picture
from .exported import settings_of, state_of

POINTS = 500
"""Maximum points of a curve. More cannot be distinguished at a chart's width."""
MAX_CHARTS = 60
_STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; line-height: 1.45; }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.tables { display: flex; flex-wrap: wrap; gap: 0 3rem; align-items: flex-start; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top; font-weight: normal; overflow-wrap: anywhere; }
th[scope=row] { color: GrayText; }
thead th { font-weight: 600; }
img { max-width: 100%; height: auto; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid color-mix(in srgb, currentcolor 25%, transparent); border-radius: 4px; }
"""


def page_of(record: RunRecord, store: RunStore) -> str:
    """Return a run of `store` as the text of an HTML file."""
    summaries = store.summaries().get(record.number, [])
    title = escape(record.name)
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started))
    facts = {
        "State": state_of(record),
        "Started": started,
        "Duration": "" if record.ended is None else duration(record.ended - record.started),
        "Engines": str(record.world_size),
        "Tags": ", ".join(record.tags),
        "Run": record.run_id,
        **settings_of(record),
    }
    hyperparameters = {name: str(value) for name, value in (record.hyperparameters or {}).items()}
    parts = [
        f"<h1>{title}</h1>",
        f'<div class="tables">{_values("Run", facts)}{_values("Hyperparameters", hyperparameters)}{_metrics(summaries)}</div>',
        _charts(record, store),
        f'<h2>Cell</h2><pre tabindex="0">{escape(record.cell())}</pre>',
        *(f'<h2>{escape(name)}</h2><pre tabindex="0">{escape(text)}</pre>' for name, text in record.functions().items()),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        # The policy forbids to load or run anything, whatever is in the run's names.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        f"<title>{title}</title><style>{_STYLE}</style>"
    )
    body = "\n".join(filter(None, parts))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def _values(title: str, values: dict[str, str]) -> str:
    rows = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in values.items() if text)
    return f"<section><h2>{escape(title)}</h2><table>{rows}</table></section>" if rows else ""


def _metrics(summaries: Iterable[CurveSummary]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(one.name)}</th>'
        + "".join(f"<td>{'–' if value is None else f'{value:.6g}'}</td>" for value in (one.last, one.low, one.high))
        + "</tr>"
        for one in summaries
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Metric", "Last", "Min", "Max"))
    return f"<section><h2>Metrics</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>" if rows else ""


def _charts(record: RunRecord, store: RunStore) -> str:
    names = [name for name in store.names(record.run_id) if not name.startswith(OF_DEVICES)]
    curves = []
    for name in names:
        found, _ = store.view(record.run_id, name, limit=POINTS)
        curves.append(Points(run_id=record.run_id, name=name, step=found.step, time=found.time, value=found.finite()))
    drawn = picture(curves, limit=MAX_CHARTS)
    return f"<h2>Curves</h2>{drawn}" if drawn else ""
