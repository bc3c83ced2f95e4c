// An array in storage: its shards as a grid, darker where more was saved, and the chunks of one.

import { h, pressable, roving, svg, titled } from "./dom.js";
import { inkOn, ramp } from "./colours.js";
import { bytes, counted, exactBytes, times } from "./format.js";

export function drawStore(store) {
  const whole = store.shape.reduce((product, size) => product * size, 1) * store.itemsize;
  const there = store.files.filter(Boolean), stored = there.reduce((sum, file) => sum + file[0], 0);
  const all = store.files.length === store.count;
  const chunks = h("div", { class: "chunk-frame", "aria-live": "polite" });
  const place = layerOf(store);
  return h("div", { class: "view store" },
    h("p", { class: "lead" }, h("code", {}, store.url)),
    h("div", { class: "tiles wide" },
      tile(all && stored ? times(whole / stored) : "—", "smaller", `${bytes(whole)} as ${bytes(stored)}`),
      tile(`${store.dtype}`, "elements", `[${store.shape.join(", ")}]`), tile(counted(there.length, store.is_sharded ? "shard" : "chunk"), "stored", `of ${store.count.toLocaleString("en")}, each [${store.shards.join(", ")}]`),
      tile(store.inner.join(" × ") || "1", "chunks in a shard", `each [${store.chunks.join(", ")}]`), tile(store.codecs.join(", "), "codec")),
    !all && h("p", { class: "hint" }, `The first ${store.files.length} of ${store.count} shards were looked at.`),
    h("div", { class: "shards" }, h("section", {}, h("h3", {}, "Shards"), legend(store), shardGrid(store, place, (n) => chunks.replaceChildren(...chunkGrid(store, n)))), chunks));
}

function tile(figure, name, more) {
  return h("div", { class: "tile" }, h("span", { class: "figure" }, figure), h("span", { class: "tile-name" }, name), h("span", { class: "hint" }, more || ""));
}

// How many times smaller a number of bytes became, from 0 for not at all to 1 for the most.
function rangeOf(store) {
  const ratios = store.files.map((file, n) => (file ? wholeBytes(store, n) / file[0] : 0)).filter(Boolean);
  return [Math.min(1, ...ratios), Math.max(1.0001, ...ratios)];
}

function shadeOf(ratio, [low, high]) {
  return 1 - Math.log(Math.max(low, ratio) / low) / Math.log(high / low);
}

function at(grid, number) {
  const place = [];
  for (let dim = grid.length - 1; dim >= 0; dim--) { place.unshift(number % grid[dim]); number = Math.floor(number / grid[dim]); }
  return place;
}

function sides(store, sizes, place, origin) {
  return sizes.map((size, dim) => { const start = origin[dim] + place[dim] * size; return [Math.min(start, store.shape[dim]), Math.min(start + size, store.shape[dim])]; });
}

function boxText(found) {
  return `[${found.map(([low, high]) => `${low}:${high}`).join(", ")}]`;
}

function sizeOf(found) {
  return found.reduce((product, [low, high]) => product * (high - low), 1);
}

function wholeBytes(store, number) {
  return sizeOf(sides(store, store.shards, at(store.grid, number), store.shape.map(() => 0))) * store.itemsize;
}

// The last two dimensions make a panel; the ones before them are panels side by side.
function layerOf(store) {
  return panels(store.grid);
}

function panels(grid) {
  const columns = grid[grid.length - 1] ?? 1, rows = grid[grid.length - 2] ?? 1;
  return { columns, rows, size: columns * rows };
}

function drawGrid(count, { columns, rows, size }, look, pick) {
  const cell = Math.max(9, Math.min(44, Math.floor(300 / columns)));
  const many = Math.ceil(count / size), across = Math.max(1, Math.min(many, Math.floor(620 / (columns * cell + 14))));
  const cells = [];
  for (let n = 0; n < count; n++) {
    const panel = Math.floor(n / size), inside = n % size, { shade, text, label, isAbsent } = look(n);
    const x = (panel % across) * (columns * cell + 14) + (inside % columns) * cell, y = Math.floor(panel / across) * (rows * cell + 14) + Math.floor(inside / columns) * cell;
    const one = svg("g", { class: isAbsent ? "shard absent" : "shard", role: "button", "aria-label": label, "data-shard": n, "aria-current": n === 0 ? "true" : null, transform: `translate(${x} ${y})` },
      svg("rect", { width: cell - 2, height: cell - 2, rx: Math.min(5, cell / 6), fill: isAbsent ? "none" : ramp(shade) }), cell > 30 && !isAbsent && svg("text", { x: cell / 2 - 1, y: cell / 2 + 3, "text-anchor": "middle", fill: inkOn(shade) }, text));
    cells.push(pressable(titled(one, label), () => { cells.forEach((other) => other.removeAttribute("aria-current")); one.setAttribute("aria-current", "true"); pick(n); }));
  }
  roving(cells, columns);
  const wide = Math.min(many, across) * (columns * cell + 14), high = Math.ceil(many / across) * (rows * cell + 14);
  return h("div", { class: "scroll" }, svg("svg", { class: "shard-grid", width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, role: "group" }, cells));
}

function shardGrid(store, place, pick) {
  const range = rangeOf(store);
  const look = (n) => {
    const file = store.files[n], found = sides(store, store.shards, at(store.grid, n), store.shape.map(() => 0));
    if (!file) return { isAbsent: true, label: `${boxText(found)}: nothing is stored, all fill value` };
    const ratio = wholeBytes(store, n) / file[0];
    return { shade: shadeOf(ratio, range), text: times(ratio), label: `${boxText(found)}: ${exactBytes(file[0])}, ${times(ratio)} smaller` };
  };
  const element = drawGrid(store.files.length, place, look, pick);
  if (store.files.length) pick(0);
  return element;
}

function chunkGrid(store, number) {
  const file = store.files[number], corner = at(store.grid, number).map((place, dim) => place * store.shards[dim]);
  const found = sides(store, store.shards, at(store.grid, number), store.shape.map(() => 0));
  const head = h("h3", {}, `${store.is_sharded ? "Shard" : "Chunk"} ${at(store.grid, number).join(", ")}`);
  const told = h("p", {}, h("code", {}, boxText(found)), file ? ` ${exactBytes(file[0])}, ${times(wholeBytes(store, number) / file[0])} smaller` : " nothing is stored");
  if (!file || !file[1]) return [head, told];
  const whole = store.chunks.reduce((product, size) => product * size, 1) * store.itemsize;
  const ratios = file[1].filter(Boolean).map((size) => whole / size), range = [Math.min(1, ...ratios), Math.max(1.0001, ...ratios)];
  const line = h("p", { class: "hint" }, "Choose a chunk.");
  const look = (n) => {
    const box = sides(store, store.chunks, at(store.inner, n), corner), size = file[1][n];
    if (!size) return { isAbsent: true, label: `${boxText(box)}: ${sizeOf(box) ? "all fill value" : "outside of the array"}` };
    return { shade: shadeOf(whole / size, range), text: times(whole / size), label: `${boxText(box)}: ${exactBytes(size)}, ${times(whole / size)} smaller` };
  };
  return [head, told, drawGrid(file[1].length, panels(store.inner), look, (n) => { line.textContent = look(n).label; }), line];
}

function legend(store) {
  const [low, high] = rangeOf(store), steps = Array.from({ length: 24 }, (_, n) => n / 23);
  return h("div", { class: "legend" }, h("span", {}, times(low)),
    svg("svg", { width: 120, height: 10, "aria-hidden": "true" }, steps.map((part, n) => svg("rect", { x: n * 5, width: 5.2, height: 10, fill: ramp(1 - part) }))), h("span", {}, `${times(high)} smaller`));
}
