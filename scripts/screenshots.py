"""Pictures of a report for the docs: python scripts/screenshots.py REPORT.html FOLDER [CHROMIUM].

Needs playwright, pillow and a Chromium. Every picture is a section of the page at one width, light or dark,
after something was done to it; its colours are reduced until it is small.
"""

import shutil
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

DESKTOP, PHONE = (1280, 900), (390, 844)


def main(report: Path, out: Path, chromium: str) -> None:
    """Open the page once for every picture, act, and write what is seen."""
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (size, scheme, act) in PICTURES.items():
            width, height = size
            viewport: Any = {"width": width, "height": height}
            page = browser.new_page(
                viewport=viewport, color_scheme=scheme, offline=True, reduced_motion="reduce"
            )
            page.goto(report.resolve().as_uri())
            act(page)
            small(page.screenshot()).save(out / f"{name}.png", optimize=True)
        browser.close()


def small(picture: bytes) -> Image.Image:
    """The same picture in 256 colours."""
    return Image.open(BytesIO(picture)).convert("RGB").quantize(256, dither=Image.Dither.NONE)


def to(page: Page, name: str) -> None:
    """Bring a section to the top."""
    page.evaluate("(name) => document.getElementById(name).scrollIntoView()", name)


def hover(page: Page, where: str, across: float, down: float) -> None:
    """Move the pointer into the first element that fits, in shares of its size."""
    box = page.locator(where).first.bounding_box() or {}
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])


def summary(page: Page) -> None:
    """The top of the page, sorted by the test accuracy."""
    page.locator("[aria-labelledby=summary]").get_by_role("button", name="Test").dblclick()


def spectra(page: Page) -> None:
    """The second layer, with the values at a place."""
    page.locator("[aria-labelledby=spectra] select").first.select_option(index=2)
    to(page, "spectra")
    hover(page, "[aria-labelledby=spectra] figure:not([hidden]) svg", 0.45, 0.5)


def maps(page: Page) -> None:
    """The second layer's first head, with the value of a cell."""
    selects = page.locator("[aria-labelledby=maps] select")
    selects.nth(0).select_option(index=1)
    selects.nth(1).select_option(index=1)
    to(page, "maps")
    hover(page, "[aria-labelledby=maps] canvas", 0.3, 0.6)


def trials(page: Page) -> None:
    """The first trial."""
    to(page, "robustness")


PICTURES: dict[str, tuple[tuple[int, int], Any, Callable[[Page], None]]] = {
    "summary": (DESKTOP, "light", summary),
    "spectra-dark": (DESKTOP, "dark", spectra),
    "maps": (DESKTOP, "light", maps),
    "phone": (PHONE, "light", summary),
    "phone-robustness-dark": (PHONE, "dark", trials),
}

if __name__ == "__main__":
    found = sys.argv[3] if len(sys.argv) > 3 else shutil.which("chromium")
    if len(sys.argv) < 3 or found is None:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), found)
