// A mesh as a grid of cells that can be chosen: the last axis across, the one before it down,
// the others as panels one below the other.

import { h, pressable, roving, svg, titled } from "./dom.js";
import { coordinate, device, meshSize } from "./space.js";

const MOST = 256, WIDE = 312;

// look(rank) gives { fill, ink, label }, or the kind of a fill and its opacity; pick(rank) is called for the cell that is chosen.
export function drawMesh(mesh, look, pick, chosen) {
  const size = meshSize(mesh), shown = Math.min(size, MOST);
  const sizes = mesh.axes.map((axis) => axis[1]);
  const columns = sizes[sizes.length - 1] || 1, rows = sizes[sizes.length - 2] || 1;
  const cell = Math.max(15, Math.min(50, Math.floor(WIDE / columns) - 3));
  const panel = columns * rows, panels = Math.ceil(shown / panel);
  const head = 18, side = sizes.length > 1 ? 14 : 0;
  const high = rows * (cell + 3) + head;
  const place = (rank) => [side + (rank % columns) * (cell + 3), Math.floor(rank / panel) * high + head + Math.floor((rank % panel) / columns) * (cell + 3)];
  const parts = [], cells = [];
  for (let n = 0; n < panels; n++) {
    parts.push(svg("text", { class: "mesh-axis", x: side, y: n * high + 12 }, panelTitle(mesh, n, panel)));
    if (side) parts.push(svg("text", { class: "mesh-axis", transform: `translate(10 ${n * high + head + rows * (cell + 3) / 2}) rotate(-90)`, "text-anchor": "middle" }, mesh.axes[mesh.axes.length - 2][0]));
  }
  for (let rank = 0; rank < shown; rank++) {
    const { fill, ink, text, label, kind, opacity } = look(rank), [x, y] = place(rank);
    const one = svg("g", { class: "mesh-cell", role: "button", "aria-label": label, "aria-current": rank === chosen ? "true" : null, "data-rank": rank, transform: `translate(${x} ${y})` },
      svg("rect", { width: cell, height: cell, rx: Math.min(6, cell / 5), fill, class: kind, "fill-opacity": opacity }),
      cell > 18 && svg("text", { x: cell / 2, y: cell / 2 + 4, "text-anchor": "middle", class: "mesh-number", fill: ink }, text ?? device(mesh, rank)));
    cells.push(pressable(titled(one, label), () => choose(rank)));
    parts.push(one);
  }
  const choose = (rank) => {
    cells.forEach((one, n) => (n === rank ? one.setAttribute("aria-current", "true") : one.removeAttribute("aria-current")));
    pick(rank, (n) => { const [x, y] = place(n); return [x + cell / 2, y + cell / 2]; });
  };
  const width = Math.min(WIDE + 30, side + columns * (cell + 3) + 2);
  const picture = svg("svg", { class: "mesh", width, height: panels * high, viewBox: `0 0 ${side + columns * (cell + 3) + 2} ${panels * high}`, role: "group", "aria-label": `Mesh ${mesh.text}` }, parts);
  roving(cells, columns);
  const element = h("div", { class: "mesh-frame" }, picture, size > MOST && h("p", { class: "hint" }, `the first ${MOST} of ${size} cells`));
  return { element, picture, choose, place: (n) => { const [x, y] = place(n); return [x + cell / 2, y + cell / 2]; }, shown };
}

function panelTitle(mesh, number, panel) {
  const outer = mesh.axes.slice(0, -2), at = coordinate(mesh, number * panel);
  const where = outer.map(([name], n) => `${name}=${at[n]}`).join(" ");
  const last = mesh.axes[mesh.axes.length - 1];
  return [where, last ? `${last[0]} →` : "one cell"].filter(Boolean).join("   ");
}

export function cellName(mesh, rank) {
  const at = coordinate(mesh, rank);
  const where = mesh.axes.map(([name], n) => `${name}=${at[n]}`).join(" ");
  return where ? `cell ${device(mesh, rank)} (${where})` : `cell ${device(mesh, rank)}`;
}
