"""The page in Chromium: what clicks and keys do, how it looks, how fast it is."""

import json

import numpy as np
import pytest
from tests.report.browser import Visit, launched
from tests.report.programs import MESH, ODD, planned
from tests.runtime.cluster.metrics import recorded

from weft import DeviceMesh, Machine, ShardingSpec, ckks, ops, search, store, trace
from weft.plan.machines import H200_NODE
from weft.report import Subject, report_data, write
from weft.report.data import front_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def block(folder):
    """The demo's block on eight cells."""
    return write(folder / "block.html", planned(1, first=ODD), title=ODD)


@pytest.fixture(scope="module")
def front():
    graph = trace(lambda x, w, v: ops.relu(x @ w) @ v, (64, 256), (256, 1024), (1024, 256))
    return search(graph, DeviceMesh.parse(MESH), H200_NODE)


@pytest.fixture(scope="module")
def everything(folder, front):
    """A page with all kinds of views."""
    place = folder / "a.zarr"
    with store.create(place, (8, 64, 64), "uint16", (2, 16, 16), (4, 32, 32), codecs="zstd") as a:
        a.append(np.tile(np.arange(64, dtype="uint16"), (8, 64, 1)))
    layer = trace(lambda v, w: ops.convolve(v, w, padding=(1, 1)), (1, 4, 8, 8), (8, 4, 3, 3))
    return write(
        folder / "everything.html",
        front=front,
        run=recorded(Machine(flops={"float32": 1e9})),
        ckks=ckks.plan(layer, slots=4096, encrypted="v"),
        store=place,
    )


@pytest.fixture(scope="module")
def large(folder):
    """Three hundred blocks: 3,000 operators."""
    return write(folder / "large.html", planned(300), title="large")


def node(page, text):
    return page.locator("g.node.operator", has_text=text).first


# Speed.


def test_the_demo_opens(browser, everything):
    with Visit(browser, everything) as visit:
        assert visit.opening() > 0


def frames(visit, steps=90):
    """The milliseconds between frames while the graph is dragged about."""
    page = visit.page
    page.evaluate(
        """() => { window.times = []; let last = performance.now(); window.stop = false;
        const tick = (now) => {
          times.push(now - last); last = now; if (!stop) requestAnimationFrame(tick);
        };
        requestAnimationFrame(tick); }"""
    )
    box = page.locator(".graph-frame").bounding_box()
    x, y = box["x"] + 40, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(steps):
        page.mouse.move(x + 3 * step, y - 5 * step)
    page.mouse.up()
    page.wait_for_function("window.times.length > 2")
    return page.evaluate("() => { window.stop = true; return window.times.slice(1); }")


@pytest.mark.parametrize("is_open", [False, True], ids=["folded", "open"])
def test_of_three_thousand_operators_few_are_drawn(browser, large, is_open):
    assert large.stat().st_size < 2_000_000
    with Visit(browser, large) as visit:
        if is_open:
            visit.page.get_by_role("button", name="Open all").click()
            visit.page.wait_for_selector("text=Fold all")
        assert frames(visit)
        # What a frame draws does not grow with the graph.
        assert visit.page.locator("g.node").count() < 600


# Looking at a value.


def test_a_click_on_a_node_shows_where_its_value_lies(browser, block):
    plan = planned(1, first=ODD)
    with Visit(browser, block) as visit:
        page = visit.page
        node(page, "attention").click()
        assert page.locator(".panel h2").inner_text() == "attention"
        spec = plan.specs["attention"]
        cells = page.locator(".panel .value .mesh-cell")
        assert cells.count() == plan.mesh.size
        for rank in range(plan.mesh.size):
            held = spec.region(plan.graph.values["attention"].shape, rank)
            assert str(held) in cells.nth(rank).get_attribute("aria-label")
        cells.nth(6).click()
        told = page.locator(".panel .value .cell-told").inner_text()
        assert told.startswith(f"cell 6 (dp=1 tp=2) holds {spec.region((4, 4, 16, 8), 6)}")


def test_explain_ends_at_a_written_sharding(browser, block):
    with Visit(browser, block) as visit:
        page = visit.page
        page.locator("g.node.input", has_text="l0.wo").click()
        chain = page.locator(".panel .chain li").all_inner_texts()
        assert chain[0] == "through einsum from attention, dimension 1"
        assert chain[-1] == 'as written: <@m, [{}, {"tp"}, {}]>'
        page.locator(".panel .chain .link", has_text="attention").click()
        assert page.locator(".panel h2").inner_text() == "attention"
        assert visit.focused().startswith("n")


def test_a_click_on_an_edge_lists_senders_and_receivers(browser, block):
    plan = planned(1, first=ODD)
    data = report_data(Subject(front_of([plan])))["plans"][0]
    moves = {data["values"][move["value"]]["name"]: move for move in data["moves"]}
    with Visit(browser, block) as visit:
        page = visit.page
        page.locator('.edge-group[data-value="einsum_4"] .edge-label').click()
        move = moves["einsum_4"]
        assert page.locator(".panel .amount").inner_text().startswith(f"{move['bytes']:,} B")
        steps = data["routes"][move["route"]]["steps"]
        kinds = [step["kind"].replace("_", " ") for step in steps]
        assert page.locator(".panel .step b").all_inner_texts() == kinds
        for number, step in enumerate(steps):
            page.locator(".panel .step").nth(number).click()
            assert page.locator(".panel .matrix rect.sent").count() == len(step["pairs"])
            page.locator('.panel .mesh-cell[data-rank="5"]').click()
            rows = page.locator(".panel .boxes tr").all_inner_texts()
            mine = [pair for pair in step["pairs"] if pair[1] == 5]
            assert len(rows) == len(mine) == page.locator(".panel .arrow").count()
            assert mine[0][3][0] in rows[0]


def test_an_edge_without_traffic_is_labelled(browser, block):
    with Visit(browser, block) as visit:
        hit = visit.page.locator('.edge-group[data-value="attention"] .edge-hit')
        hit.dispatch_event("click", {"bubbles": True})
        assert "Nothing moves" in visit.page.locator(".panel").inner_text()


def test_names_that_would_be_markup_are_shown_as_they_are(browser, block):
    with Visit(browser, block) as visit:
        page = visit.page
        assert page.locator("h1").inner_text() == ODD
        assert page.locator("body b", has_text="$").count() == 0
        page.locator("g.node.input").filter(has_text="</script>").click()
        assert page.locator(".panel h2").inner_text() == ODD
        page.get_by_role("searchbox").fill("</scr")
        assert ODD in page.locator(".hits").inner_text()


def test_a_row_of_the_slowest_selects_its_node_or_edge(browser, block):
    with Visit(browser, block) as visit:
        page = visit.page
        page.locator(".slowest button:has(rect.computes)", has_text="matmul").first.click()
        assert page.locator("g.node.is-selected").count() == 1
        assert page.locator(".panel h2").inner_text() == "matmul"
        page.locator(".slowest button:has(rect.moves)").first.click()
        assert page.locator("g.edge-group.is-selected").count() == 1
        assert page.locator(".panel .amount").count() == 1


# Keys.


def test_the_graph_is_walked_by_keys(browser, block):
    with Visit(browser, block) as visit:
        page = visit.page
        page.get_by_role("button", name="Show all of it").focus()
        page.keyboard.press("Tab")
        first = visit.focused()
        assert first.startswith("n")
        page.keyboard.press("ArrowDown")
        second = visit.focused()
        assert second not in ("", first)
        edges = json.loads(page.locator("#data").text_content())["plans"][0]["edges"]
        assert [int(first[1:]), int(second[1:])] in [edge[:2] for edge in edges]
        stroke = page.locator(f'[data-key="{second}"] .node-back')
        assert stroke.evaluate("one => getComputedStyle(one).strokeWidth") == "2.6px"
        page.keyboard.press("ArrowRight")
        assert visit.focused() not in ("", second)
        page.keyboard.press("Enter")
        assert page.locator(".panel").is_visible()
        here = visit.focused()
        page.keyboard.press("Escape")
        assert not page.locator(".panel").is_visible()
        assert visit.focused() == here


def test_the_panel_is_reached_and_left_by_keys(browser, block):
    with Visit(browser, block) as visit:
        page = visit.page
        node(page, "gelu").focus()
        page.keyboard.press("Enter")
        for _ in range(4):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.classList.contains('mesh-cell')"):
                break
        else:
            pytest.fail("no cell of the mesh is reached")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        assert "cell 1 " in page.locator(".panel .value .cell-told").inner_text()
        page.keyboard.press("Escape")
        assert not page.locator(".panel").is_visible()
        assert visit.focused().startswith("n")


def test_tabs_are_changed_by_keys(browser, everything):
    with Visit(browser, everything) as visit:
        page = visit.page
        page.get_by_role("tab", name="Plan").focus()
        for name, kind in (("Run", "run"), ("Ciphertexts", "ckks"), ("Store", "store")):
            page.keyboard.press("ArrowRight")
            page.keyboard.press("Enter")
            assert page.get_by_role("tab", name=name).get_attribute("aria-selected") == "true"
            assert page.locator(f".view.{kind}").is_visible()
            assert not page.locator(".view.plan").is_visible()


# Fronts and folds.


def test_a_point_of_the_front_is_the_plan_that_is_shown(browser, everything, front):
    with Visit(browser, everything) as visit:
        page = visit.page
        view = page.locator(".view.plan")
        assert view.get_attribute("data-plan") == str(front.plans.index(front.balanced))
        assert page.locator(".front-point").count() == len(front)
        seen = set()
        for number, cost in enumerate(front.costs):
            page.locator(f'.front-point[data-plan="{number}"]').dispatch_event("click")
            assert view.get_attribute("data-plan") == str(number)
            told = page.locator(".tiles").first.inner_text()
            assert f"{cost.received:,} B between cells" in told
            seen.add(told)
            operators = page.locator("g.node.operator").count()
            assert operators == len(cost.plan.graph.applications)
        assert len(seen) == len(front)
        page.locator(".front-point[aria-current]").focus()
        before = view.get_attribute("data-plan")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        assert view.get_attribute("data-plan") != before
        page.get_by_role("combobox").select_option("2")
        assert page.locator(".front-point").count() == len(front)


def test_layers_are_folded_until_they_are_opened(browser, large):
    with Visit(browser, large) as visit:
        page = visit.page
        folded = page.locator("g.node.folded")
        assert folded.count() == 17
        assert page.locator("g.node.operator").count() == 0
        assert page.locator(".graph-status").inner_text() == "4,801 nodes folded"
        folded.first.focus()
        page.keyboard.press("Enter")
        assert page.locator("g.node.opened").count() == 1
        assert page.locator("g.node.folded").count() == 16 + 18
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert page.locator("g.node.operator").count() == 10
        page.keyboard.press("Escape")
        assert page.locator("g.node.operator").count() == 0
        assert page.locator("g.node.opened").count() == 1


def test_folded_values_are_found_by_name(browser, large):
    with Visit(browser, large) as visit:
        page = visit.page
        page.get_by_role("searchbox").fill("l222.wq")
        page.keyboard.press("Enter")
        assert page.locator(".panel h2").inner_text() == "l222.wq"
        assert page.locator("g.node.opened").count() == 2
        assert page.locator("g.node.is-selected").is_visible()
        page.get_by_role("searchbox").fill("nothing at all")
        assert page.locator(".hits").inner_text() == "nothing is named so"


def test_the_wheel_zooms_and_the_pointer_drags(browser, block):
    with Visit(browser, block) as visit:
        page = visit.page
        before = node(page, "gelu").bounding_box()
        box = page.locator(".graph-frame").bounding_box()
        page.mouse.move(box["x"] + 30, box["y"] + 300)
        drawing = page.locator("svg.graph > g")
        whole = drawing.get_attribute("transform")
        page.mouse.wheel(0, -300)
        page.wait_for_function(
            "([one, before]) => one.getAttribute('transform') !== before",
            arg=[drawing.element_handle(), whole],
        )
        visit.await_frames()
        zoomed = node(page, "gelu").bounding_box()
        assert zoomed["width"] > 1.3 * before["width"]
        page.mouse.down()
        page.mouse.move(box["x"] + 130, box["y"] + 340, steps=5)
        page.mouse.up()
        visit.await_frames()
        moved = node(page, "gelu").bounding_box()
        assert moved["x"] - zoomed["x"] == pytest.approx(100, abs=2)
        assert moved["y"] - zoomed["y"] == pytest.approx(40, abs=2)
        assert not page.locator(".panel").is_visible()


# Runs, ciphertexts, stores.


def test_a_run_beside_its_prediction(browser, everything):
    record = recorded(Machine(flops={"float32": 1e9}))
    with Visit(browser, everything) as visit:
        page = visit.page
        page.get_by_role("tab", name="Run").click()
        received = page.locator(".pair").first.inner_text()
        assert received.count(f"{record.total.received:,} B") == 2
        assert "exactly as predicted" in received
        workers = page.locator(".table-frame").nth(1).locator("tbody tr")
        assert workers.count() == len(record.by_worker)


def test_shards_and_their_chunks(browser, everything, folder):
    array = store.open(folder / "a.zarr")
    with Visit(browser, everything) as visit:
        page = visit.page
        page.get_by_role("tab", name="Store").click()
        shards = page.locator(".shards > section .shard")
        assert shards.count() == 8
        box = list(array.shards_of())[3]
        shards.nth(3).click()
        size = (folder / "a.zarr/c/0/1/1").stat().st_size
        assert f"{box} {size:,} B" in page.locator(".chunk-frame p").first.inner_text()
        chunks = page.locator(".chunk-frame .shard")
        assert chunks.count() == 8
        chunks.nth(5).click()
        assert "smaller" in page.locator(".chunk-frame .hint").inner_text()


def test_layers_on_ciphertexts(browser, everything):
    with Visit(browser, everything) as visit:
        page = visit.page
        page.get_by_role("tab", name="Ciphertexts").click()
        assert "10\nrotations" in page.locator(".view.ckks .tiles").inner_text()
        assert "convolution" in page.locator(".view.ckks tbody").inner_text()
        assert page.locator(".stairs .level").count() == 1


# Looks.


def test_it_fits_a_phone(browser, everything):
    with Visit(browser, everything, 360, 740, has_touch=True, is_mobile=True) as visit:
        page = visit.page
        node(page, "matmul").tap()
        assert page.locator(".panel").is_visible()
        panel = page.locator(".panel").bounding_box()
        assert panel["width"] == 360
        assert panel["y"] > 200
        page.locator(".panel-close").tap()
        for name in ("Plan", "Run", "Ciphertexts", "Store"):
            page.get_by_role("tab", name=name).tap()
            assert not visit.overflows()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_ink_is_readable_on_its_ground(browser, everything, scheme):
    with Visit(browser, everything, scheme=scheme) as visit:
        pairs = [("--ink", "--ground"), ("--ink", "--surface"), ("--soft", "--ground")]
        pairs += [("--accent", "--surface"), ("--moves", "--moves-soft"), ("--soft", "--faint")]
        for ink, ground in pairs:
            assert contrast(visit, ink, ground) >= 4.5, (ink, ground)
        bright = luminance(colour(visit, "--ground"))
        assert (bright > 0.5) == (scheme == "light")


def colour(visit, name):
    text = visit.page.evaluate(
        "name => getComputedStyle(document.documentElement).getPropertyValue(name)", name
    ).strip()
    return [int(text[n : n + 2], 16) for n in (1, 3, 5)]


def luminance(tones):
    linear = [
        t / 12.92 if t <= 0.03928 else ((t + 0.055) / 1.055) ** 2.4 for t in np.divide(tones, 255)
    ]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(visit, *names):
    low, high = sorted(luminance(colour(visit, name)) for name in names)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("axes", [(8,), (2, 2, 2), (2, 1, 3, 2)], ids=str)
def test_meshes_of_any_rank_are_drawn(browser, folder, axes):
    from weft import Plan, propagate

    mesh = DeviceMesh("m", axes, [f"a{n}" for n in range(len(axes))])
    spec = ShardingSpec.parse(
        f'<@m, [{{"a{len(axes) - 1}", "a0"}}]>' if len(axes) > 1 else '<@m, [{"a0"}]>', mesh
    )
    plan = Plan.of(propagate(trace(lambda x: x + x, (10,), shardings={"x": spec})))
    page_file = write(folder / f"mesh{len(axes)}.html", plan)
    with Visit(browser, page_file) as visit:
        visit.page.locator("g.node.input").click()
        cells = visit.page.locator(".panel .mesh-cell")
        found = [cells.nth(n).get_attribute("aria-label") for n in range(cells.count())]
        regions = plan.specs["x"].regions((10,))
        assert len(found) == mesh.size
        for text, region in zip(found, regions):
            assert (str(region) if region else "nothing") in text
