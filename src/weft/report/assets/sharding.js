// How an array lies on a mesh: its dimensions as bars, the cells with their boxes, and why.

import { h, svg } from "./dom.js";
import { inkOn, ramp } from "./colours.js";
import { box, bytes, counted } from "./format.js";
import { cellName, drawMesh } from "./mesh.js";
import { block, blockNumber, boxOf, coordinate, grid, interval, meshSize, partOf } from "./space.js";

// names are those of the dimensions; itemsize is left out for an index space.
export function drawSharding(mesh, layout, names, itemsize) {
  const counts = grid(layout), told = h("p", { class: "cell-told", "aria-live": "polite" });
  const bars = h("div", { class: "dims" });
  const shadeOf = (rank) => {
    const [number, count] = blockNumber(layout, coordinate(mesh, rank));
    return count > 1 ? number / (count - 1) : 0.35;
  };
  const textOf = (rank) => {
    const held = boxOf(layout, coordinate(mesh, rank));
    const part = partOf(layout, coordinate(mesh, rank));
    const size = held.start.reduce((product, low, dim) => product * (held.stop[dim] - low), 1);
    const amount = itemsize ? `, ${bytes(size * itemsize)}` : `, ${counted(size, "point")}`;
    return `${cellName(mesh, rank)} ${itemsize ? "holds" : "computes"} ${size ? box(held.start, held.stop) + amount : "nothing"}${part ? `, ${part}` : ""}`;
  };
  const drawBars = (rank) => {
    const numbers = block(layout, coordinate(mesh, rank));
    bars.replaceChildren(...layout.shape.map((_, dim) => bar(names[dim] ?? `dimension ${dim}`, layout, dim, numbers[dim])));
  };
  const pick = (rank) => { drawBars(rank); told.textContent = textOf(rank); };
  const look = (rank) => ({ fill: ramp(shadeOf(rank)), ink: inkOn(shadeOf(rank)), label: textOf(rank) });
  const drawn = drawMesh(mesh, look, pick, 0);
  pick(0);
  return h("div", { class: "sharding" }, bars, drawn.element, told, summary(mesh, layout, counts));
}

function bar(name, layout, dim, chosen) {
  const size = layout.shape[dim], axes = layout.axes[dim], count = grid(layout)[dim];
  const shown = Math.min(count, 64), wide = 200;
  const [low, high] = interval(layout, dim, chosen);
  const blocks = [];
  for (let n = 0; n < shown; n++) {
    const [a, b] = count > shown ? [size * n / shown, size * (n + 1) / shown] : interval(layout, dim, n);
    blocks.push(svg("rect", { class: "dim-block", x: (a / Math.max(1, size)) * wide, y: 0, width: Math.max(0, ((b - a) / Math.max(1, size)) * wide - 1), height: 10, rx: 2 }));
  }
  const mark = svg("rect", { class: "dim-held", x: (low / Math.max(1, size)) * wide, y: 0, width: Math.max(1, ((high - low) / Math.max(1, size)) * wide - 1), height: 10, rx: 2 });
  const cut = axes === "{}" ? "whole" : axes.replace(/[{}"]/g, "");
  return h("div", { class: "dim" }, h("span", { class: "dim-name" }, name, h("i", {}, ` ${size}`)),
    svg("svg", { viewBox: `0 0 ${wide} 10`, class: "dim-bar", preserveAspectRatio: "none", role: "img", "aria-label": `${low} to ${high} of ${size}` }, blocks, mark),
    h("span", { class: axes === "{}" ? "dim-cut" : "dim-cut axis" }, cut));
}

function summary(mesh, layout, counts) {
  const blocks = counts.reduce((product, count) => product * count, 1);
  const parts = layout.parts.reduce((product, [digit]) => product * digit[2], 1);
  const copies = meshSize(mesh) / blocks / parts;
  const words = [counted(blocks, "block")];
  if (parts > 1) words.push(`each in ${counted(parts, "part")} still to be combined`);
  if (copies > 1) words.push(`${counted(copies, "copy", "copies")} of each`);
  return h("p", { class: "hint" }, words.join(", "));
}
