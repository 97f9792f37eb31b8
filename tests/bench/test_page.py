"""The report as a page: all there, nothing fetched."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.bench.comparison import compare_arms
from dspark_ops.bench.measurement import Dispatch
from dspark_ops.bench.page import page
from dspark_ops.bench.record import ArmRecord

Arms = Callable[..., tuple[ArmRecord, ArmRecord]]
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Reader(HTMLParser):
    """Collects tags, attributes that fetch, ids and texts, and checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        self._look(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._look(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def _look(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action") and not (value or "").startswith("#"):
                self.fetched.append(f"{name}={value}")
            if name == "id" and value:
                self.ids.append(value)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def _matplotlib() -> Any:
    return pytest.importorskip("matplotlib", reason="the plots need the extra 'bench'")


def test_the_page_holds_everything_and_fetches_nothing(arms: Arms, _matplotlib: Any) -> None:
    records = arms()
    text = page(compare_arms(*records), *records)
    found = read(text)
    assert found.fetched == []
    assert not found.tags & {"script", "link", "iframe", "img", "object", "embed", "base"}
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert len(found.ids) == len(set(found.ids))
    assert text.count("<svg") == 4
    words = " ".join(found.texts)
    for part in (
        "B is faster: +2.02 %", "microseconds per cycle", "tokens that a verify step gives", "A again, as control",
        "calls: times were not taken", "fast/argmax_rows/one_launch", "machine.processor", "Not shown",
    ):  # fmt: skip
        assert part in words


def test_shares_of_operators_are_of_time_where_times_were_taken(arms: Arms, _matplotlib: Any) -> None:
    served = Dispatch("argmax_rows", "core/argmax_rows/reference", 80, seconds=0.25)
    whole = Dispatch("accept_tail", "core/accept_tail/composed", 80, seconds=0.75, composed=True)
    records = arms(
        first={"dispatch": (served, whole)}, second={"dispatch": (served, whole)}, treatments=({"environment": {}},) * 2
    )
    text = page(compare_arms(*records), *records)
    assert "time inside operators, in the counted run of each launch" in text
    plot = text[text.index("<h2>Operators") :]
    assert "accept_tail" not in plot[: plot.index("</svg>")]


def test_what_a_command_printed_cannot_write_into_the_page(arms: Arms, _matplotlib: Any) -> None:
    evil = "<script>alert(1)</script>"
    served = {"dispatch": (Dispatch(evil, f"x/{evil}/y", 5),)}
    records = arms(first=served, second={**served, "tokens_digest": evil}, treatments=({"command": [evil]},) * 2)
    assert "<script" not in page(compare_arms(*records), *records)


def test_a_page_of_nothing_but_faults_can_be_read_too(
    arms: Arms, changed: Callable[..., ArmRecord], _matplotlib: Any
) -> None:
    first, second = arms(control=())
    for place in range(4):
        second = changed(second, place, measurement=None, error="exit code 1")
    found = read(page(compare_arms(first, second), first, second))
    assert "no statement: 1 fault, see below" in found.texts


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
#: What a reader would see, written into the title once the page has been laid out.
SEEN = """<script>addEventListener("load", () => {
  const box = item => { const {width, height} = item.getBoundingClientRect(); return [width, height]; };
  document.title = JSON.stringify({
    beyond: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    plots: [...document.querySelectorAll("svg")].map(box), label: box(document.querySelector(".simulated")),
    fetched: performance.getEntriesByType("resource").length,
  });
});</script>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here to lay the page out")
def test_a_browser_lays_the_page_out_within_its_window_and_fetches_nothing(
    arms: Arms, _matplotlib: Any, tmp_path: Path
) -> None:
    drawn = {"simulated": True}
    records = arms(first=drawn, second=drawn)
    text = page(compare_arms(*records), *records)
    assert "simulated: true" in text
    file = tmp_path / "report.html"
    file.write_text(text.replace("</body>", f"{SEEN}</body>"), encoding="utf-8")
    words = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*words, "--window-size=700,900", "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    seen = json.loads(html.unescape(title[1]))
    assert seen["beyond"] <= 0 and seen["fetched"] == 0
    assert len(seen["plots"]) >= 4 and all(width > 300 and height > 50 for width, height in seen["plots"])
    assert seen["label"][0] > 300 and seen["label"][1] > 20
