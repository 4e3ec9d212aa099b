"""The page in a real Chromium with networking off: nothing fails, and every control does what it says."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest

from kernelhead.report import write_report
from tests.report.samples import HOSTILE, LAYERS, write_runs

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

ROOT = Path(__file__).parents[2]
DESKTOP, PHONE = 1280, 390
TOO_WIDE = "document.documentElement.scrollWidth - innerWidth"
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    return write_report(write_runs(folder), folder / "page.html", title=f"A page {HOSTILE}").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    # Root may not use the sandbox, and there are no strangers on a page that loads nothing.
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Open]:
    """Opens the page as asked; in the end nothing must have failed or been asked for beside it."""
    wrong: list[str] = []
    contexts = []

    def open_page(width: int = DESKTOP, *, expected: bool = True, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        if expected:
            page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("request", lambda asked: asked.url == address or wrong.append(asked.url))
            page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture
def page(opened: Open) -> Any:
    return opened()


def section(page: Any, name: str) -> Any:
    return page.locator(f"section[aria-labelledby={name}]")


def column(table: Any, number: int) -> list[str]:
    return [
        " ".join(text.split()) for text in table.locator(f"tbody tr > :nth-child({number})").all_inner_texts()
    ]


def point(page: Any, place: Any, across: float, down: float) -> None:
    """Move the pointer to a place inside an element, in shares of its size."""
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_without_a_network_and_nothing_sticks_out(opened: Open, width: int, scheme: str) -> None:
    page = opened(width, color_scheme=scheme)
    assert page.evaluate(TOO_WIDE) == 0
    assert page.locator("h2").count() == 13
    assert page.locator("h2:visible").count() == 13
    # Nor does what is said beside the pointer, at the right edge of everything that can be asked.
    for plot in page.locator(".plot:visible").all():
        point(page, plot.locator("svg, canvas"), 0.98, 0.5)
        assert plot.locator(".said").inner_text()
        assert page.evaluate(TOO_WIDE) == 0


def test_names_from_records_are_shown_and_do_nothing(page: Any) -> None:
    assert HOSTILE in section(page, "summary").inner_text()
    assert page.title() == f"A page {HOSTILE}"
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("img").count() == 0
    point(page, section(page, "learning").locator("svg").first, 0.5, 0.5)
    assert HOSTILE in section(page, "learning").locator(".said").first.inner_text()


def test_only_the_script_of_the_page_may_run_and_nothing_may_be_loaded(opened: Open) -> None:
    page = opened(expected=False)
    broken = page.evaluate(
        """() => new Promise((done) => {
            const seen = [];
            setTimeout(() => done(seen.sort()), 5000);
            document.addEventListener("securitypolicyviolation", (event) => {
                seen.push(event.effectiveDirective);
                if (seen.length === 2) done(seen.sort());
            });
            const script = document.createElement("script");
            script.textContent = "hacked = 3";
            document.body.append(script);
            const image = document.createElement("img");
            image.src = "https://example.org/x.png";
            document.body.append(image);
        })"""
    )
    assert broken == ["img-src", "script-src-elem"]
    assert page.evaluate("typeof hacked") == "undefined"


def test_tables_are_sorted_by_their_heads(page: Any) -> None:
    table = section(page, "summary").locator("table")
    head = table.get_by_role("columnheader", name="Parameters")
    before = column(table, 4)
    assert before == ["90", "1 090"]
    button = head.get_by_role("button")
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(table, 4) == ["90", "1 090"]
    button.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column(table, 4) == ["1 090", "90"]
    table.get_by_role("button", name="Test").click()
    assert [text[:4] for text in column(table, 2)] == ["80.0", "90.0"]
    assert table.locator("th[aria-sort]").count() == 1


def test_what_is_missing_is_sorted_last(page: Any) -> None:
    table = section(page, "flow").locator("table")
    cell = table.locator("tbody tr").first.locator("td").nth(2)
    cell.evaluate("(cell) => { cell.dataset.value = ''; cell.textContent = '–'; }")
    for _ in range(2):
        table.get_by_role("button", name="Alone").click()
        assert column(table, 4)[-1] == "–"


def test_a_layer_is_chosen(page: Any) -> None:
    spectra = section(page, "spectra")
    assert spectra.locator("figure:visible").count() == 2
    spectra.get_by_role("combobox", name="Layer").select_option(LAYERS[1])
    assert spectra.locator("figure:visible h3").all_inner_texts() == [LAYERS[1]]
    spectra.get_by_role("combobox", name="Layer").select_option("all")
    assert spectra.locator("figure:visible").count() == 2


def test_a_head_is_chosen(page: Any) -> None:
    spectra = section(page, "spectra")
    share = spectra.locator("svg").first
    path, band = share.locator("[id$=line-0] > path"), share.locator("[id$=band-0]")
    mean = path.get_attribute("d")

    def told() -> str:
        point(page, share, 0.15, 0.5)
        return str(spectra.locator(".said").first.inner_text())

    whole = told()
    spectra.get_by_role("combobox", name="Head").select_option("2")
    assert path.get_attribute("d") != mean
    assert not band.is_visible()
    assert spectra.locator("h3").first.inner_text() == f"{LAYERS[0]}, head 2"
    # Values of head 2 fall as exp(-k): the first holds 1 - 1/e of their sum.
    assert "primal: 63.21" in told() != whole
    spectra.get_by_role("combobox", name="Head").select_option("mean of heads")
    assert path.get_attribute("d") == mean
    assert band.is_visible()
    assert told() == whole


def test_charts_tell_their_values(page: Any) -> None:
    learning = section(page, "learning")
    plot, said = learning.locator(".plot").first, learning.locator(".said").first
    assert said.inner_text() == ""
    point(page, plot.locator("svg"), 0.99, 0.5)
    assert said.inner_text().splitlines()[:3] == [
        "epoch 4",
        "● primal, training: 0.5",
        "● primal, validation: 0.75",
    ]
    page.mouse.move(0, 0)
    assert said.inner_text() == ""
    plot.focus()
    for key, epoch in (("ArrowRight", 1), ("ArrowRight", 2), ("End", 4), ("ArrowLeft", 3), ("Home", 1)):
        page.keyboard.press(key)
        assert said.inner_text().startswith(f"epoch {epoch}\n")
    page.keyboard.press("Escape")
    assert said.inner_text() == ""


def pixels(canvas: Any) -> list[int]:
    script = """(canvas) => {
        const { width, height } = canvas;
        const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
        copy.drawImage(canvas, 0, 0);
        return [...copy.getImageData(0, 0, width, height).data];
    }"""
    return list(canvas.evaluate(script))


def test_heat_maps_show_the_layer_and_the_head_that_are_chosen(page: Any) -> None:
    maps = section(page, "maps")
    first, second = maps.locator("figure").all()
    canvas = first.locator("canvas")
    assert "primal, blocks.0.attention, mean of heads, from " in canvas.get_attribute("aria-label")
    mean = pixels(canvas)
    assert len(mean) == 4 * 6 * 6
    maps.get_by_role("combobox", name="Head").select_option("0")
    assert "head 0, from -0.1" in canvas.get_attribute("aria-label")
    drawn = pixels(canvas)
    assert drawn != mean
    # cos(0) / 6 is the largest entry of head 0, and its first row and column.
    assert drawn[3] == drawn[7] == 255
    assert drawn[:3] != drawn[4 * (6 + 3) :][:3], "of another sign, of another colour"
    maps.get_by_role("combobox", name="Layer").select_option(LAYERS[1])
    assert "blocks.1.attention, head 0" in canvas.get_attribute("aria-label")
    assert second.get_by_text("This run has no such layer or head.").is_visible()
    assert not second.locator("canvas").is_visible()


def test_heat_maps_tell_their_values(page: Any) -> None:
    maps = section(page, "maps")
    plot, said = maps.locator(".plot").first, maps.locator(".said").first
    maps.get_by_role("combobox", name="Head").select_option("0")
    point(page, plot.locator("canvas"), 0.01, 0.99)
    assert said.inner_text().splitlines() == ["point 10–11 to 0–1", "0.167"]
    page.mouse.move(0, 0)
    plot.focus()
    for key, where in (
        ("ArrowDown", "0–1 to 0–1"),
        ("ArrowDown", "2–3 to 0–1"),
        ("ArrowRight", "2–3 to 2–3"),
    ):
        page.keyboard.press(key)
        assert said.inner_text().startswith(f"point {where}\n")
    page.keyboard.press("Escape")
    assert said.inner_text() == ""


def test_trials_and_heads_of_graphs_are_chosen(page: Any) -> None:
    trials = section(page, "robustness")
    assert trials.locator("h3:visible").all_inner_texts() == ["grey: attacked, accuracy in %"]
    assert "FGSM 1/255" in trials.inner_text()
    trials.get_by_role("combobox", name="Trial").select_option("text: perplexity, lower is better")
    assert "5% random" in trials.inner_text()
    assert "FGSM" not in trials.locator("h4:visible").first.inner_text()
    trials.get_by_role("combobox", name="Trial").select_option("all")
    assert trials.locator("h3:visible").count() == 6
    graphs = section(page, "graphs")
    assert graphs.locator("figure:visible").count() == 6
    graphs.get_by_role("combobox", name="Head").select_option("Head 1")
    assert graphs.locator("figure:visible").count() == 2


def test_only_what_differs(page: Any) -> None:
    rows = section(page, "configuration").locator("tbody tr:visible")
    everything = rows.count()
    section(page, "configuration").get_by_label("Only what differs").check()
    assert [text.split("\xa0")[0] for text in rows.locator("th").all_inner_texts()] == ["name", "rank"]
    section(page, "configuration").get_by_label("Only what differs").uncheck()
    assert rows.count() == everything


def background(page: Any) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_colours_follow_the_system_and_the_switch(opened: Open) -> None:
    light, dark = opened(color_scheme="light"), opened(color_scheme="dark")
    day, night = background(light), background(dark)
    assert day != night
    for page, system in ((light, day), (dark, night)):
        for choice, shown in (("dark", night), ("light", day), ("as the system", system)):
            page.get_by_role("combobox", name="Colours").select_option(choice)
            assert background(page) == shown
    dark.get_by_role("combobox", name="Colours").select_option("light")
    dark.reload()
    assert (background(dark), dark.get_by_role("combobox", name="Colours").input_value()) == (day, "light")


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_every_control_is_reached_by_keyboard_and_shows_it(opened: Open, width: int) -> None:
    page = opened(width)
    wanted = page.evaluate(
        """() => {
            const all = [...document.querySelectorAll("a, button, select, input, [tabindex='0']")];
            const there = all.filter((each) => each.checkVisibility());
            there.forEach((each, number) => { each.dataset.number = number; });
            return there.length;
        }"""
    )
    reached = []
    for _ in range(wanted):
        page.keyboard.press("Tab")
        number, outline = page.evaluate(
            "[document.activeElement.dataset.number, getComputedStyle(document.activeElement).outlineStyle]"
        )
        reached.append(int(number))
        assert outline != "none"
    assert reached == [*range(wanted)]
    assert wanted > 60


def test_every_control_has_a_name(page: Any) -> None:
    for role in ("link", "button", "combobox", "checkbox", "region", "group", "img", "table", "list"):
        found = page.get_by_role(role).all()
        named = page.get_by_role(role, name=re.compile(r"\S")).all()
        # Lists of links need none: their navigation has one.
        assert len(found) - len(named) == (1 if role == "list" else 0), role
        assert found


CONTRAST = """() => {
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
        const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = numbers(colour).map((c) => linear(c / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (node) => {
        for (let each = node; each; each = each.parentElement) {
            const colour = getComputedStyle(each).backgroundColor;
            if ((numbers(colour)[3] ?? 1) > 0) return colour;
        }
        return "rgb(255, 255, 255)";
    };
    const found = new Map();
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const node = walk.currentNode.parentElement;
        if (!walk.currentNode.data.trim() || !node.checkVisibility()) continue;
        if (node.closest("script, option, [aria-hidden]")) continue;
        const style = getComputedStyle(node);
        const ink = node.closest("svg") ? style.fill : style.color;
        const [a, b] = [light(ink), light(behind(node))].sort((x, y) => y - x);
        found.set(`${ink} on ${behind(node)}`, (a + 0.05) / (b + 0.05));
    }
    return [...found];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_stand_out(opened: Open, scheme: str) -> None:
    found = dict(opened(color_scheme=scheme).evaluate(CONTRAST))
    assert len(found) >= 6
    assert {pair: ratio for pair, ratio in found.items() if ratio < 4.5} == {}


def test_on_paper_it_is_light_and_without_controls(opened: Open) -> None:
    page = opened(color_scheme="dark")
    page.get_by_role("combobox", name="Colours").select_option("dark")
    page.emulate_media(media="print")
    assert background(page) == "rgb(255, 255, 255)"
    assert page.locator("nav:visible, select:visible, input:visible").count() == 0
    assert page.locator("canvas:visible").count() == 2
    assert min(ratio for _, ratio in page.evaluate(CONTRAST)) >= 4.5
    assert len(page.pdf()) > 10_000


def test_nothing_moves_for_those_who_ask_for_that(opened: Open) -> None:
    moving, still = opened(reduced_motion="no-preference"), opened(reduced_motion="reduce")
    script = "getComputedStyle(document.documentElement).scrollBehavior"
    assert (moving.evaluate(script), still.evaluate(script)) == ("smooth", "auto")


def test_without_the_script_all_is_there_but_the_controls(opened: Open) -> None:
    page = opened(PHONE, java_script_enabled=False)
    assert page.locator("h2:visible").count() == 13
    assert page.locator("select:visible, button:visible, input:visible").count() == 0
    assert section(page, "spectra").locator("svg:visible").count() == 4
    assert section(page, "robustness").locator("h3:visible").count() == 6
    assert page.get_by_text("These pictures are drawn by the script of this page").is_visible()


@pytest.mark.slow
def test_the_pictures_of_the_docs_can_be_made_and_are_small(address: str, tmp_path: Path) -> None:
    words = [str(ROOT / "scripts" / "screenshots.py"), url2pathname(urlparse(address).path), str(tmp_path)]
    subprocess.run([sys.executable, *words, str(CHROMIUM)], check=True, timeout=120)
    made = sorted(path.name for path in tmp_path.iterdir())
    kept = sorted((ROOT / "docs" / "screenshots").iterdir())
    assert made == [path.name for path in kept]
    assert all(path.stat().st_size < 150_000 for path in kept)
    page = (ROOT / "docs" / "report.md").read_text("utf-8")
    assert all(f"(screenshots/{name})" in page for name in made)
