"""How the report looks: light and dark as the reader's system is, one column on a phone."""

from __future__ import annotations

from typing import Final

from .svg_chart import N_COLOURS

_LIGHT: Final = "#1f6fb2 #c4501b #2e8540 #8440a8 #9a6b00 #b3266d #0f7f86 #5b5b5b"
_DARK: Final = "#6cb6f5 #f59a63 #74c987 #c79be6 #dcb454 #f08bbd #5fd0d6 #b4b4b4"


def _series(colours: str) -> str:
    return "".join(f"--s{i}:{colour};" for i, colour in enumerate(colours.split()))


STYLE: Final = (
    f""":root{{color-scheme:light dark;--bg:#fff;--fg:#1b1b1b;--soft:#5c5c5c;--line:#d9d9d9;
--box:#f6f6f6;--good:#1f7a37;--bad:#b3261e;--warn:#8a5a00;{_series(_LIGHT)}}}
@media(prefers-color-scheme:dark){{:root{{--bg:#16181b;--fg:#e8e8e8;--soft:#a3a8ae;--line:#3a3f45;
--box:#1f2226;--good:#6fce87;--bad:#ff8a80;--warn:#e6b45c;{_series(_DARK)}}}}}"""
    + """*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:84rem;background:var(--bg);color:var(--fg);
font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.15rem;margin:1.6rem 0 .4rem}
h3{font-size:.95rem;margin:.2rem 0;font-weight:600}
p{margin:.3rem 0;max-width:60rem}.soft{color:var(--soft);font-size:.9rem}
.plots{display:grid;gap:1rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,22rem),1fr))}
figure{margin:0;padding:.7rem;background:var(--box);border:1px solid var(--line);border-radius:8px}
figcaption{color:var(--soft);font-size:.85rem;margin-top:.3rem}
svg{width:100%;height:auto;display:block;font:12px system-ui,sans-serif}
svg text{fill:var(--fg)}svg .label{fill:var(--soft)}
.grid{stroke:var(--line);stroke-width:.6}.axis{stroke:var(--soft);stroke-width:1}
.ref{stroke:var(--fg);stroke-width:1.2;stroke-dasharray:4 3}
.span{stroke-width:3;stroke-linecap:round;opacity:.75}.path{fill:none;stroke-width:2}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;min-width:100%}
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;
vertical-align:top}
th:first-child,td:first-child{text-align:left}thead th{color:var(--soft);font-weight:600}
table.facts td{text-align:left;white-space:pre-wrap;overflow-wrap:anywhere}
table.facts th{text-align:left;color:var(--soft);font-weight:500}
.good{color:var(--good)}.bad{color:var(--bad);font-weight:600}.warn{color:var(--warn)}
summary{cursor:pointer;padding:.2rem 0}
ul{margin:.3rem 0;padding-left:1.2rem}li{overflow-wrap:anywhere}
@media print{figure{break-inside:avoid}}
"""
    + "".join(
        f".s{i}.dot,.s{i}.bar{{fill:var(--s{i})}}.s{i}.path,.s{i}.span{{stroke:var(--s{i})}}"
        for i in range(N_COLOURS)
    )
)
