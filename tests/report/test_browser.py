"""The page in a real browser: no errors, and every plot has data, in light and dark."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.report.browser import look, screenshot
from tidegs.cli.main import main

CHARTS = {
    "memory": (
        "Peak of each tier",
        "Process memory",
        "Arena over time",
        "Host cache",
        "Records on SSD",
        "Decoded images",
    ),
    "traffic": ("Bytes a step on each link", "Bytes a step over time", "Least loads"),
    "time": ("Share of the time", "Time a step"),
    "cameras": ("Working set", "Blocks seen from above"),
    "quality": ("Loss", "PSNR"),
}


@pytest.fixture(scope="module")
def page(result):
    assert main(["report", str(result), "--quiet"]) == 0
    return result / "report.html"


def test_every_plot_has_data(page, tmp_path):
    seen = look(page, tmp_path / "profile")
    assert seen.console == []
    sections = dict(re.findall(r'<div class="grid" id="(\w+)">(.*?)(?=<h2>|<script)', seen.dom, re.S))
    for name, titles in CHARTS.items():
        figures = sections[name].split("<figure")[1:]
        assert len(figures) == len(titles), name
        for title in titles:
            found = [f for f in figures if f"<h3>{title}" in f]
            assert len(found) == 1, title
            drawn = re.findall(r'class="data"', found[0])
            assert drawn, title
        assert not any("NaN" in f for f in figures)


def test_the_browser_check_sees_errors(page, tmp_path):
    """Guards the test above: a page that throws is noticed."""
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text().replace('"use strict";', '"use strict"; null.field;', 1))
    assert any("TypeError" in line for line in look(broken, tmp_path / "profile").console)


def test_light_and_dark(page, tmp_path):
    pictures = []
    for name, flags in (("light", ()), ("dark", ("--blink-settings=preferredColorScheme=0",))):
        target = tmp_path / f"{name}.png"
        screenshot(page, tmp_path / name, target, 1240, 1600, *flags)
        pictures.append(np.asarray(Image.open(target).convert("L"), np.float32))
    light, dark = pictures
    assert light.mean() > 200
    assert dark.mean() < 60
    assert min(light.std(), dark.std()) > 10  # something is drawn


def test_it_fits_a_narrow_screen(page, tmp_path):
    narrow = page.read_text().replace(
        "</main>", "</main><script>document.title = document.documentElement.scrollWidth - innerWidth</script>", 1
    )
    (tmp_path / "narrow.html").write_text(narrow)
    seen = look(tmp_path / "narrow.html", tmp_path / "profile", "--window-size=500,900")
    assert int(re.search(r"<title>(-?\d+)</title>", seen.dom)[1]) <= 0


def test_comparison(result, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(result, other, ignore=shutil.ignore_patterns("store", "ply"))
    both = tmp_path / "both.html"
    assert main(["report", str(result), str(other), "--html", str(both), "--quiet"]) == 0
    seen = look(both, tmp_path / "profile")
    assert seen.console == []
    assert len(re.findall(r'class="data"', seen.dom)) >= 12  # two curves in each of six figures or more
