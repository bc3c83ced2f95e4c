// The first look at a plan: what it takes, where the time goes, what each cell holds and receives.

import { clip, h, svg, titled } from "./dom.js";
import { bytes, counted, exactBytes, seconds } from "./format.js";
import { title } from "./scene.js";
import { meshSize } from "./space.js";

const MANY = 60;

export function drawOverview(plan, goToNode, goToEdge) {
  const { figures } = plan, cells = meshSize(plan.mesh);
  const free = !plan.machine;
  const tiles = [
    tile(free && !figures.seconds ? "—" : seconds(figures.seconds), "time", free ? "no machine is said" : `estimate, ${clip(plan.machine, 30)}`),
    tile(bytes(figures.bytes), "moved", `${exactBytes(figures.bytes)} between cells, exact`),
    tile(bytes(figures.peak), "peak of a cell", figures.capacity ? `${percent(figures.peak / figures.capacity)} of ${bytes(figures.capacity)}${figures.fits ? "" : ": does not fit"}` : "exact"),
    tile(cells.toLocaleString("en"), cells === 1 ? "cell" : "cells", plan.mesh.axes.map(([name, size]) => `${name}=${size}`).join(" · ") || "no axes"),
  ];
  if (figures.loaded || figures.stored) tiles.push(tile(bytes(figures.loaded + figures.stored), "storage", `${bytes(figures.loaded)} read, ${bytes(figures.stored)} written`));
  return [h("div", { class: "tiles" }, tiles), ...plan.assumed.map((text) => h("p", { class: "hint" }, `assumed: ${text}`)), slowest(plan, goToNode, goToEdge), byCell(plan)];
}

function tile(figure, name, more) {
  return h("div", { class: "tile" }, h("span", { class: "figure" }, figure), h("span", { class: "tile-name" }, name), h("span", { class: "hint" }, more));
}

function percent(part) {
  return part < 0.001 ? "< 0.1 %" : `${(100 * part).toPrecision(2)} %`;
}

function slowest(plan, goToNode, goToEdge) {
  const rows = plan.nodes.map((node, n) => ({ name: title(plan, node), what: node.values.length ? plan.values[node.values[0]].name : "", seconds: node.seconds || 0, go: () => goToNode(n) }));
  plan.edges.forEach(([, end, value, moves], n) => {
    const total = (moves || []).reduce((sum, move) => sum + plan.moves[move].seconds, 0);
    if (total) rows.push({ name: moveName(plan, moves[0]), what: `${plan.values[value].name} → ${title(plan, plan.nodes[end])}`, seconds: total, isMove: true, go: () => goToEdge(n) });
  });
  plan.nodes.forEach((node, n) => {
    for (const move of node.settles || []) rows.push({ name: moveName(plan, move), what: plan.values[plan.moves[move].value].name, seconds: plan.moves[move].seconds, isMove: true, go: () => goToNode(n) });
  });
  const taking = rows.filter((row) => row.seconds > 0);
  if (!taking.length) return null;
  const top = (taking.length > MANY ? together(taking) : taking).sort((one, two) => two.seconds - one.seconds).slice(0, 7);
  return h("section", { class: "slowest" }, h("h3", {}, "Where the time goes"),
    h("ol", {}, top.map((row) => {
      const fill = svg("rect", { class: row.isMove ? "moves" : "computes", width: Math.max(0.5, (100 * row.seconds) / top[0].seconds), height: 4, rx: 1 });
      return h("li", {}, h("button", { type: "button", onclick: row.go },
        h("span", {}, h("b", {}, clip(row.name, 24)), " ", h("i", {}, clip(row.what, 26))), h("span", { class: "number" }, seconds(row.seconds)),
        svg("svg", { viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" }, fill)));
    })));
}

// Of many, those of one kind as one; choosing it goes to the slowest of them.
function together(rows) {
  const kinds = new Map();
  for (const row of rows) {
    const kind = kinds.get(row.name) || kinds.set(row.name, { ...row, seconds: 0, count: 0, most: 0 }).get(row.name);
    kind.seconds += row.seconds;
    kind.count++;
    if (row.seconds > kind.most) Object.assign(kind, { most: row.seconds, go: row.go });
  }
  return [...kinds.values()].map((kind) => ({ ...kind, what: `× ${kind.count.toLocaleString("en")}` }));
}

function moveName(plan, move) {
  const { steps } = plan.routes[plan.moves[move].route];
  return steps.map((step) => step.kind.replaceAll("_", " ")).join(", ") || "move";
}

function byCell(plan) {
  const { peaks, received } = plan.figures;
  if (!peaks || peaks.length < 2) return null;
  return h("section", {}, h("h3", {}, "By cell"), bars(peaks, "holds", "computes"), bars(received, "receives", "moves"));
}

function bars(numbers, verb, kind) {
  const most = Math.max(1, ...numbers), wide = 100 / numbers.length;
  const shapes = numbers.map((number, n) => titled(svg("rect", { class: kind, x: n * wide, y: 30 - (29 * number) / most, width: Math.max(0.3, wide * 0.82), height: (29 * number) / most + 0.5 }), `cell ${n} ${verb} ${exactBytes(number)}`));
  const low = Math.min(...numbers), high = Math.max(...numbers);
  return h("div", { class: "bars" }, h("span", { class: "hint" }, `${verb} ${low === high ? bytes(high) : `${bytes(low)} to ${bytes(high)}`}`),
    svg("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", role: "img", "aria-label": `Each cell ${verb} ${low === high ? bytes(high) : `${bytes(low)} to ${bytes(high)}`}` }, shapes));
}

export function countOperators(plan) {
  return counted(plan.figures.operators, "operator");
}
