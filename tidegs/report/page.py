"""The report as one HTML file: style, script, data and pictures inside, so that it works offline and can be mailed.

Invariant: nothing in the page is fetched; every text that comes from files is escaped.
"""

from __future__ import annotations

import dataclasses
import html
import json
from importlib.resources import files
from typing import Any

from tidegs.report.advice import advice, bottleneck
from tidegs.report.facts import LINKS, TIERS, collect
from tidegs.report.pictures import comparisons
from tidegs.report.result import RunData
from tidegs.report.series import curves
from tidegs.report.study import Study
from tidegs.report.table import compare_rows, duration, number, share, size

_TRAFFIC_NOTE = (
    "Full reload: the whole scene in slots, in every step. No reuse: what the passes needed, each time anew. Belady's "
    "bound: what the best eviction could have done with the same budgets and the same order of cameras."
)


def build(run: RunData, facts: dict[str, Any], found: Study) -> str:
    """The page of one run; `facts` from facts.collect, `found` from study.study."""
    data = {
        "facts": facts,
        "curves": curves(run),
        "tier_names": TIERS,
        "traffic_note": _TRAFFIC_NOTE,
        "sets": found.sets,
        "loads": found.loads,
        "map": found.map,
    }
    missing = "".join(f'<p class="note">{_text(m)}</p>' for m in found.missing)
    body = [
        _header(run, facts),
        _tiles(facts),
        _verdict(facts),
        _predicted(facts),
        _charts("memory", "Memory", "Who holds the bytes of each tier, and how close it came to its budget."),
        _charts("traffic", "Traffic", "What moved between the tiers.") + _links(facts),
        _charts("time", "Stalls", "When the trainer had to wait."),
        _charts("cameras", "Cameras and blocks", "What each camera needs, and where the blocks lie.") + missing,
        _charts("quality", "Quality", "") + _scores(run),
        _views(run),
        _settings(run),
    ]
    return _document(f"{run.name}: tidegs report", "\n".join(body), data)


def build_comparison(runs: list[RunData]) -> str:
    """One page for several runs: figures side by side, curves over one another."""
    facts = [collect(run) for run in runs]
    data = {
        "runs": [{"name": n, "curves": curves(r)} for n, r in zip(unique_names(runs), runs, strict=True)],
        "link_names": LINKS,
    }
    head, *rows = compare_rows(unique_names(runs), facts)
    body = [
        f'<header><div><h1>{_text(" and ".join(unique_names(runs)))}</h1><p class="soft">Comparison of runs</p></div>'
        '<button class="theme" id="theme" type="button">theme</button></header>',
        f'<div class="panel scroll">{_table(head, rows)}</div>',
        _charts("compared", "Curves", ""),
    ]
    return _document("tidegs: comparison", "\n".join(body), data)


def unique_names(runs: list[RunData]) -> list[str]:
    """Folder names, or whole paths where they are not all different."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.root) for run in runs]


def _document(title: str, body: str, data: dict[str, Any]) -> str:
    assets = files("tidegs.report") / "assets"
    payload = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{_text(title)}</title>",
            f"<style>{(assets / 'report.css').read_text()}</style></head>",
            f"<body><main>{body}</main>",
            f'<script type="application/json" id="data">{payload}</script>',
            f"<script>{(assets / 'report.js').read_text()}</script></body></html>",
            "",
        ]
    )


def _text(value: Any) -> str:
    return html.escape(str(value))


def _charts(name: str, title: str, lead: str) -> str:
    lead = f'<p class="soft">{_text(lead)}</p>' if lead else ""
    return f'<h2>{_text(title)}</h2>{lead}<div class="grid" id="{name}"></div>'


def _header(run: RunData, facts: dict[str, Any]) -> str:
    where = {True: "in core", False: "out of core", None: ""}[facts["in_core"]]
    state = f"{facts['state']} at step {facts['step']:,} of {facts['max_steps']:,}"
    scene = facts["scene_size"]
    parts = [state, where, f"order {facts['order']}", f"{number(scene['gaussians'], ',')} Gaussians"]
    if facts["resumes"]:
        parts.append(f"resumed {facts['resumes']} times")
    line = " · ".join(_text(p) for p in parts if p)
    return (
        f'<header><div><h1>{_text(run.name)}</h1><div class="soft">{line}</div>'
        f'<div class="note">{_text(facts["scene"])}</div></div>'
        '<button class="theme" id="theme" type="button">theme</button></header>'
    )


def _tile(label: str, value: str, sub: str = "", part: float | None = None) -> str:
    meter = f'<div class="meter"><i style="width:{min(100.0, 100 * part):.1f}%"></i></div>' if part is not None else ""
    return (
        f'<div class="panel tile"><div class="label">{_text(label)}</div><div class="value">{_text(value)}</div>'
        f'{meter}<div class="sub">{_text(sub)}</div></div>'
    )


def _tiles(facts: dict[str, Any]) -> str:
    quality, flow = facts["quality"], facts["flow"]
    a_step = facts["seconds_a_step"]
    out = [
        _tile("PSNR", number(quality.get("psnr"), ".2f"), _evaluated(quality)),
        _tile("SSIM", number(quality.get("ssim"), ".4f"), f"LPIPS {number(quality.get('lpips'), '.4f')}"),
        _tile("time", duration(facts["seconds"]), f"{1000 * a_step:.1f} ms a step" if a_step else ""),
    ]
    for tier, found in facts["tiers"].items():
        part = found["peak"] / found["budget"] if found["budget"] else None
        sub = f"of {size(found['budget'])}, {share(part)}" if found["budget"] else "no budget of its own"
        out.append(_tile(f"peak {TIERS[tier]}", size(found["peak"]), sub, part))
    out.append(_tile("waiting for blocks", share(flow["stall_share"]), duration(flow["stall_seconds"])))
    out.append(_tile("overlap", share(flow["overlap"]), "of transfers with compute"))
    hits = flow["hits"]
    if hits is not None and flow["misses"] is not None:
        sub = f"of {hits + flow['misses']:,} blocks needed"
        out.append(_tile("in the arena when due", share(flow["hit_share"]), sub))
    return f'<div class="tiles">{"".join(out)}</div>'


def _evaluated(quality: dict[str, Any]) -> str:
    return f"{quality['images']} test images, step {quality['step']:,}" if quality else "not evaluated"


def _verdict(facts: dict[str, Any]) -> str:
    points = "".join(f"<li>{_text(a)}</li>" for a in advice(facts))
    points = f"<ul>{points}</ul>" if points else ""
    return (
        f'<h2>Bottleneck</h2><div class="panel verdict"><strong>{_text(_sentence(bottleneck(facts)))}</strong>'
        f"{points}</div>"
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _table(head: list[str] | tuple[str, ...], rows: list[Any], text_columns: int = 1) -> str:
    def cells(row: Any, tag: str) -> str:
        style = ['class="text"' if i < text_columns else "" for i in range(len(row))]
        return "".join(f"<{tag} {s}>{_text(c)}</{tag}>" for c, s in zip(row, style, strict=True))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{cells(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def _predicted(facts: dict[str, Any]) -> str:
    if not facts["predicted"]:
        return ""
    rows = []
    for one in facts["predicted"]:
        shown = [size(one[k]) if one["unit"] == "bytes" else number(one[k], ".4f") for k in ("predicted", "actual")]
        rows.append((one["name"], *shown, number(one["ratio"], ".2f")))
    table = _table(("", "predicted", "actual", "actual / predicted"), rows)
    return f'<h2>Plan and outcome</h2><div class="panel scroll">{table}</div>'


def _links(facts: dict[str, Any]) -> str:
    rows = []
    for link in facts["links"].values():
        rows.append(
            (
                link["label"],
                size(link["bytes"]),
                size(link["bytes_a_step"]),
                size(link["bound_a_step"]),
                size(link["no_reuse_a_step"]),
                size(link["full_reload_a_step"]),
                share(link["share_of_full_reload"]),
                size(link["bytes_a_second"]),
            )
        )
    head = ("link", "in all", "a step", "Belady's bound", "no reuse", "full reload", "of full reload", "a second, busy")
    return f'<div class="panel scroll" style="margin-top:14px">{_table(head, rows)}</div>' if rows else ""


def _scores(run: RunData) -> str:
    if not run.evaluations:
        return ""
    found = run.evaluations[max(run.evaluations)]
    views = sorted(found.get("per_view", {}).items(), key=lambda item: item[1].get("psnr") or 0)
    rows = [(n, number(s.get("psnr"), ".2f"), number(s.get("ssim"), ".4f")) for n, s in views]
    protocol = found.get("protocol") or {}
    said = "; ".join(f"{k.replace('_', ' ')}: {v}" for k, v in protocol.items())
    return (
        f'<p class="note">Protocol: {_text(said)}</p><details><summary>Scores of each test image, worst first</summary>'
        f'<div class="panel scroll">{_table(("image", "PSNR", "SSIM"), rows)}</div></details>'
    )


def _views(run: RunData) -> str:
    shown = comparisons(run)
    if not shown:
        return ""
    out = []
    for one in shown:
        pictures = "".join(
            f'<img src="{one[key]}" alt="{label} of {_text(one["name"])}" loading="lazy">'
            for key, label in (("truth", "truth"), ("render", "render"), ("map", "error map"))
        )
        caption = (
            f"{one['name']}: PSNR {number(one['psnr'], '.2f')}, SSIM {number(one['ssim'], '.4f')}, "
            f"mean error {100 * one['error']:.2f} %"
        )
        pictures = f'<div class="three">{pictures}</div>'
        out.append(f'<figure class="panel">{pictures}<figcaption>{_text(caption)}</figcaption></figure>')
    return (
        '<h2>Test images</h2><p class="soft">Truth, render, and the mean absolute error of each pixel: black none, '
        f'pale yellow 25 % and more. From the worst to the best.</p><div class="views">{"".join(out)}</div>'
    )


def _settings(run: RunData) -> str:
    values = dataclasses.asdict(run.config)
    defaults = {f.name: f.default for f in dataclasses.fields(run.config)}
    changed = [(k, v) for k, v in values.items() if v != defaults[k]]
    rows = [(k, " ".join(map(str, v)) if isinstance(v, tuple) else v) for k, v in changed]
    made = [(k.replace("_", " "), v) for k, v in run.run.items()]
    return (
        '<h2>Settings</h2><div class="grid"><div class="panel scroll"><h3>Changed from the defaults</h3>'
        f"{_table(('setting', 'value'), rows, 2)}</div>"
        f'<div class="panel scroll"><h3>What produced this result</h3>{_table(("", ""), made, 2)}</div></div>'
    )
