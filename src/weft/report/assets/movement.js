// How a value moves: the steps, who sends how much to whom, and the boxes that one cell gets.

import { h, pressable, svg, titled } from "./dom.js";
import { bytes, counted, exactBytes, seconds } from "./format.js";
import { cellName, drawMesh } from "./mesh.js";
import { device, meshSize } from "./space.js";

export function drawMove(plan, move) {
  const { steps } = plan.routes[move.route];
  const view = h("div", { class: "step-view" });
  const buttons = steps.map((step, n) => h("button", { type: "button", class: "step", "aria-pressed": "false", onclick: () => show(n) },
    h("b", {}, step.kind.replaceAll("_", " ")), step.axes && h("span", { class: "axis" }, ` ${step.axes.replaceAll('"', "")}`),
    h("span", { class: "step-size" }, bytes(sum(step.received)))));
  const show = (n) => {
    buttons.forEach((one, k) => one.setAttribute("aria-pressed", String(k === n)));
    view.replaceChildren(drawStep(plan, steps[n]));
  };
  show(Math.max(0, steps.findIndex((step) => sum(step.received))));
  const times = move.times > 1 ? `, ${move.times} times` : "";
  return h("div", { class: "move" },
    h("p", { class: "amount" }, h("b", {}, exactBytes(move.bytes)), ` received in all${times}, about ${seconds(move.seconds)}`),
    move.inside && h("p", { class: "hint" }, move.inside),
    h("div", { class: "steps" }, buttons), view);
}

function drawStep(plan, step) {
  const specs = h("p", { class: "specs" }, h("code", {}, step.before), h("span", {}, " ↓ "), h("code", {}, step.after));
  if (!step.pairs) return h("div", {}, specs, h("p", { class: "hint" }, "Who sends what to whom is not kept for a mesh of this size."), received(step));
  if (!step.pairs.length) return h("div", {}, specs, h("p", { class: "hint" }, "Nothing is sent: every cell takes a part of what it has."));
  const told = h("div", { class: "boxes", "aria-live": "polite" });
  const arrows = svg("g", { class: "arrows" });
  const most = Math.max(1, ...step.received), { mesh } = plan;
  const ranks = new Map(Array.from({ length: meshSize(mesh) }, (_, rank) => [device(mesh, rank), rank]));
  const got = new Map(step.devices.map((one, n) => [one, step.received[n]]));
  const look = (rank) => {
    const part = (got.get(device(mesh, rank)) || 0) / most;
    return { kind: "sent", opacity: 0.1 + 0.35 * part, label: `${cellName(mesh, rank)} receives ${exactBytes(got.get(device(mesh, rank)) || 0)}` };
  };
  const pick = (rank) => {
    const pairs = step.pairs.filter((pair) => pair[1] === device(mesh, rank));
    told.replaceChildren(...inbox(mesh, rank, pairs));
    arrows.replaceChildren(...pairs.map((pair) => arrow(drawn, ranks, pair, rank)).filter(Boolean));
    matrix?.choose(device(mesh, rank));
  };
  const drawn = drawMesh(mesh, look, pick, 0);
  drawn.picture.append(arrows);
  const matrix = drawMatrix(step, (one) => { if (ranks.has(one)) drawn.choose(ranks.get(one)); });
  const first = step.pairs[0][1];
  drawn.choose(ranks.get(first) ?? 0);
  return h("div", {}, specs, h("p", { class: "hint" }, "Choose a cell to see who sends to it."), drawn.element, told, matrix.element);
}

function received(step) {
  const all = step.received, most = Math.max(...all), least = Math.min(...all);
  return h("p", {}, `${counted(all.length, "cell")} receive ${least === most ? exactBytes(most) : `${exactBytes(least)} to ${exactBytes(most)}`} each.`);
}

function inbox(mesh, rank, pairs) {
  const name = cellName(mesh, rank);
  if (!pairs.length) return [h("p", {}, `${name} receives nothing.`)];
  const rows = pairs.slice(0, 16).map(([sender, , size, boxes]) => h("tr", {}, h("td", {}, `from ${sender}`), h("td", {}, h("code", {}, boxes.join(" "))), h("td", { class: "number" }, bytes(size))));
  const more = pairs.length > 16 ? [h("p", { class: "hint" }, `and ${pairs.length - 16} more`)] : [];
  return [h("p", {}, `${name} receives ${exactBytes(sum(pairs.map((pair) => pair[2])))}:`), h("table", {}, h("tbody", {}, rows)), ...more];
}

function arrow(drawn, ranks, [sender, , size], rank) {
  const from = ranks.get(sender);
  if (from === undefined || from >= drawn.shown || rank >= drawn.shown || from === rank) return null;
  const [x0, y0] = drawn.place(from), [x1, y1] = drawn.place(rank);
  const long = Math.hypot(x1 - x0, y1 - y0), [ux, uy] = [(x1 - x0) / long, (y1 - y0) / long];
  const bend = 0.16 * long, [mx, my] = [(x0 + x1) / 2 - uy * bend, (y0 + y1) / 2 + ux * bend];
  const [ex, ey] = [x1 - ux * 9, y1 - uy * 9];
  const head = `M${ex} ${ey}l${-ux * 8 - uy * 4} ${-uy * 8 + ux * 4}l${uy * 8} ${-ux * 8}z`;
  return titled(svg("g", { class: "arrow" }, svg("path", { class: "shaft", d: `M${x0} ${y0}Q${mx} ${my} ${ex} ${ey}` }), svg("path", { class: "head", d: head })), `${sender} sends ${bytes(size)}`);
}

// Senders down, receivers across.
function drawMatrix(step, pick) {
  const count = step.devices.length, cell = Math.max(4, Math.min(26, Math.floor(290 / count)));
  const at = new Map(step.devices.map((one, n) => [one, n]));
  const most = Math.max(1, ...step.pairs.map((pair) => pair[2]));
  const column = svg("rect", { class: "column", y: 0, width: cell, height: count * cell, x: 0 });
  const squares = step.pairs.map(([sender, receiver, size]) => pressable(titled(
    svg("rect", { x: at.get(receiver) * cell, y: at.get(sender) * cell, width: cell - 1, height: cell - 1, rx: 2, class: "sent", "fill-opacity": 0.12 + 0.78 * (size / most) }), `${sender} sends ${exactBytes(size)} to ${receiver}`), () => pick(receiver)));
  const picture = svg("svg", { class: "matrix", width: count * cell + 20, height: count * cell + 20, role: "img", "aria-label": "Senders down, receivers across" },
    svg("g", { transform: "translate(18 18)" }, svg("rect", { class: "matrix-back", width: count * cell, height: count * cell, rx: 3 }), squares, column),
    svg("text", { class: "mesh-axis", x: 18, y: 12 }, "to →"), svg("text", { class: "mesh-axis", transform: "translate(4 22) rotate(90)" }, "from →"));
  const choose = (receiver) => column.setAttribute("x", (at.get(receiver) ?? 0) * cell);
  return { element: h("details", { class: "matrix-frame", open: count <= 16 }, h("summary", {}, "Who sends to whom"), picture), choose };
}

function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}
