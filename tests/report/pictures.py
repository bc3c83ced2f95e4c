"""Makes the pictures of docs/report.md: python -m tests.report.pictures, with Chromium on PATH."""

import tempfile
from contextlib import chdir
from pathlib import Path

import numpy as np
from examples.demo import block_shapes, transformer_block
from tests.report.browser import Visit, launched

from weft import DeviceMesh, ckks, ops, search, store, trace
from weft.plan.machines import H200_NODE
from weft.report import write
from weft.runtime.cluster import RunRecord

DOCS = Path(__file__).parents[2] / "docs"


def camera(place):
    """A bright spot that wanders over a dark ground."""
    rng, (rows, columns) = np.random.default_rng(0), np.mgrid[:512, :640]
    with store.create(
        place, (24, 512, 640), "uint16", (4, 64, 64), (8, 256, 256), codecs="zstd"
    ) as writer:
        for time in range(24):
            far = (rows - 256) ** 2 + (columns - 300 - 5 * time) ** 2
            spot = (1000 * np.exp(-far / 6000)).astype("uint16")
            writer.append(spot + (rng.poisson(20, spot.shape) * (spot > 20)).astype("uint16"))


def network(v, a, b):
    y = ops.convolve(v, a, padding=(1, 1))
    return ops.convolve(y * y, b, padding=(1, 1))


def page_in(folder):
    """The demo's block, searched, with a run, a network on ciphertexts and a store."""
    shapes = block_shapes(batch=8, positions=256, features=512, heads=8, hidden=2048)
    mesh = DeviceMesh("m", (2, 4), ("dp", "tp"))
    camera("camera.zarr")
    return write(
        folder / "report.html",
        front=search(trace(transformer_block, *shapes.values()), mesh, H200_NODE),
        run=RunRecord.from_json((DOCS / "run.json").read_text(encoding="utf-8")),
        ckks=ckks.plan(trace(network, (1, 4, 8, 8), (8, 4, 3, 3), (8, 8, 3, 3)), 4096, "v"),
        store="camera.zarr",
        title="A transformer block on 2 × 4",
    )


def keep(visit, name):
    visit.page.wait_for_timeout(300)
    visit.page.screenshot(path=DOCS / f"report-{name}.png")
    print(name, (DOCS / f"report-{name}.png").stat().st_size)


def main():
    with tempfile.TemporaryDirectory() as folder, chdir(folder), launched() as browser:
        path = page_in(Path(folder))
        with Visit(browser, path, 1120, 690) as visit:
            visit.page.locator('.front-point[data-plan="3"]').dispatch_event("click")
            visit.page.locator("g.edge-group .edge-label").first.click()
            keep(visit, "plan")
            visit.page.get_by_role("tab", name="Run").click()
            keep(visit, "run")
        with Visit(browser, path, 1120, 690, scheme="dark") as visit:
            visit.page.locator("g.node.operator", has_text="attention").click()
            keep(visit, "value")
        with Visit(browser, path, 360, 740) as visit:
            visit.page.get_by_role("tab", name="Store").click()
            keep(visit, "phone")


if __name__ == "__main__":
    main()
