"""A real browser for tests, and what went wrong in it."""

import contextlib
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 300_000
"""Milliseconds that a busy machine may take for anything."""


@contextlib.contextmanager
def launched():
    """Chromium as it is found on PATH; where there is none, the tests say how to get it."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium on PATH: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="pip install 'weft[test]'")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"], timeout=PATIENCE
        )
        yield browser
        browser.close()


class Visit:
    """A page that is open: its console and what it asked for are kept, and must stay empty."""

    def __init__(self, browser, path, width=1280, height=800, scheme="light", **more):
        size = {"width": width, "height": height}
        self.context = browser.new_context(viewport=size, color_scheme=scheme, **more)
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda said: self.wrong.append(f"{said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda asked: self.asked.append(asked.url))
        self.asked: list[str] = []
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]")
        self.await_frames()
        self.own = path.as_uri()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.context.close()
        if kind is None:
            assert self.wrong == []
            assert [url for url in self.asked if not url.startswith("data:,")] == [self.own]

    def await_frames(self):
        """Wait until what was asked for is drawn: frames are drawn one after another."""
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def opening(self):
        """The milliseconds from the beginning to when everything is there."""
        return self.page.evaluate("performance.getEntriesByName('weft-ready')[0].startTime")

    def focused(self):
        return self.page.evaluate("document.activeElement.dataset?.key ?? ''")

    def overflows(self):
        return self.page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
