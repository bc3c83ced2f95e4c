// Reads the data, makes a view of each kind that is there, and lets one be seen at a time.

import { drawCiphertexts } from "./ciphertexts.js";
import { h, roving } from "./dom.js";
import { FrontView, drawClaim } from "./front.js";
import { GraphView } from "./graph.js";
import { countOperators, drawOverview } from "./overview.js";
import { Panel } from "./panel.js";
import { drawRun } from "./run.js";
import { drawStore } from "./store.js";

async function read() {
  const plain = document.getElementById("data");
  if (plain) return JSON.parse(plain.textContent);
  const packed = Uint8Array.from(atob(document.getElementById("packed").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function planView(data) {
  const side = h("div", { class: "overview" });
  const graph = new GraphView((what) => panel.show(what));
  const goToEdge = (n) => graph.revealEdge(n);
  const panel = new Panel(() => { graph.clear(); graph.elements.get(graph.current)?.focus({ preventScroll: true }); }, (n) => graph.reveal(n), goToEdge);
  let shown = null;
  const choose = (number) => {
    shown = data.plans[number];
    element.dataset.plan = number;
    panel.plan(shown);
    graph.show(shown);
    front?.choose(number);
    const kept = [front ? front.element : drawClaim(data.front)].filter(Boolean);
    side.replaceChildren(...kept, ...drawOverview(shown, (n) => graph.reveal(n), goToEdge).filter(Boolean), h("p", { class: "hint" }, `${countOperators(shown)} on ${shown.mesh.text}`));
  };
  const front = data.plans.length > 1 ? new FrontView(data.front, data.plans, choose) : null;
  const element = h("div", { class: "view plan" }, side, graph.element, panel.element);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") panel.hide(); });
  choose(data.front.balanced);
  return element;
}

function views(data) {
  const found = [];
  if (data.plans.length) found.push(["Plan", () => planView(data)]);
  if (data.run) found.push(["Run", () => drawRun(data.run)]);
  if (data.ckks) found.push(["Ciphertexts", () => drawCiphertexts(data.ckks)]);
  data.stores.forEach((store, n) => found.push([data.stores.length > 1 ? `Store ${n + 1}` : "Store", () => drawStore(store)]));
  return found;
}

function start(data) {
  const main = h("main", {}), made = new Map(), found = views(data);
  const tabs = found.map(([name], n) => h("button", { type: "button", role: "tab", id: `tab-${n}`, "aria-selected": "false", onclick: () => show(n) }, name));
  const show = (n) => {
    tabs.forEach((tab, k) => { tab.setAttribute("aria-selected", String(k === n)); });
    if (!made.has(n)) {
      const view = found[n][1]();
      made.set(n, h("div", { role: "tabpanel", "aria-labelledby": `tab-${n}`, class: "tabpanel" }, view));
      main.append(made.get(n));
    }
    for (const [k, element] of made) element.hidden = k !== n;
  };
  const header = h("header", { class: "top" }, h("h1", {}, data.title), tabs.length > 1 && h("nav", { role: "tablist", "aria-label": "Views" }, tabs),
    h("span", { class: "hint made" }, [data.left_out && `${data.left_out}. `, `Weft ${data.weft}`]));
  document.getElementById("app").append(header, main);
  roving(tabs, 0);
  show(0);
  performance.mark("weft-ready");
  document.documentElement.dataset.ready = "true";
}

read().then(start);
