// A network on ciphertexts: what each layer rotates and multiplies, and how the levels go down.

import { clip, h, svg } from "./dom.js";
import { bytes, counted, seconds } from "./format.js";

export function drawCiphertexts(plan) {
  const { layers, total } = plan;
  return h("div", { class: "view ckks" },
    plan.headline && h("p", { class: "headline" }, plan.headline),
    h("div", { class: "tiles wide" },
      tile(total.rotations.toLocaleString("en"), "rotations"), tile((total.plain_products + total.products).toLocaleString("en"), "products", total.products ? `${total.products.toLocaleString("en")} of ciphertexts` : "all with plaintexts"),
      tile(String(plan.depth), plan.depth === 1 ? "level deep" : "levels deep"), tile(String(total.keys), "rotation keys", plan.key_bytes ? bytes(plan.key_bytes) : ""), tile(plan.slots.toLocaleString("en"), "slots", plan.parameters)),
    h("section", {}, h("h3", {}, "Levels, layer by layer"), stairs(plan)),
    h("section", { class: "table-frame" }, h("h3", {}, "Layers"), table(layers)));
}

function tile(figure, name, more) {
  return h("div", { class: "tile" }, h("span", { class: "figure" }, figure), h("span", { class: "tile-name" }, name), h("span", { class: "hint" }, more || ""));
}

function starts(plan) {
  let before = plan.depth;
  return plan.layers.map((layer) => { const start = layer.start ?? before; before = layer.level; return Math.max(start, layer.level); });
}

function stairs(plan) {
  const { layers, depth } = plan, step = Math.max(14, Math.min(90, 900 / Math.max(1, layers.length))), high = 150, foot = 16;
  const y = (level) => 10 + ((depth - level) / Math.max(1, depth)) * (high - 10 - foot);
  const most = Math.max(1, ...layers.map((layer) => layer.rotations)), begin = starts(plan), parts = [];
  let path = "";
  layers.forEach((layer, n) => {
    const x = 56 + n * step;
    const tall = Math.max(layer.rotations ? 2 : 0, (layer.rotations / most) * (high - foot - 14));
    parts.push(svg("rect", { class: "rotations", x: x + step * 0.2, y: high - foot - tall, width: step * 0.6, height: tall, rx: 2 }, svg("title", {}, `${layer.name}: ${counted(layer.rotations, "rotation")}, level ${begin[n]} to ${layer.level}`)));
    path += `${n ? "L" : "M"}${x} ${y(begin[n])}H${x + step / 2}V${y(layer.level)}H${x + step}`;
  });
  const ticks = [depth, 0].map((level) => svg("text", { class: "mesh-axis", x: 4, y: y(level) + 4 }, `level ${level}`));
  const wide = 66 + layers.length * step;
  return h("div", { class: "scroll" }, svg("svg", { class: "stairs", width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": "Levels as a line, rotations as bars" }, parts, svg("path", { class: "level", d: path }), ticks),
    h("p", { class: "hint" }, "The line is the level of the ciphertexts; the bars are rotations."));
}

function table(layers) {
  const most = Math.max(1, ...layers.map((layer) => layer.rotations)), hasSeconds = layers.some((layer) => layer.seconds);
  const bar = (number) => svg("svg", { class: "inline-bar", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { class: "rotations", width: (100 * number) / most, height: 6, rx: 1 }));
  const heads = ["rotations", "", "products", "ciphertexts", "level", "keys", "bytes", ...(hasSeconds ? ["seconds"] : [])];
  return h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "layer"), heads.map((text) => h("th", { class: "number" }, text)))),
    h("tbody", {}, layers.map((layer) => h("tr", { title: layer.packing }, h("th", {}, clip(layer.name, 34), h("i", {}, ` ${clip(layer.operator, 24)} ${layer.mesh}`)),
      number(layer.rotations), h("td", {}, bar(layer.rotations)), h("td", { class: "number" }, `${layer.plain_products.toLocaleString("en")}${layer.products ? ` + ${layer.products.toLocaleString("en")}` : ""}`),
      h("td", { class: "number" }, `${layer.inputs} → ${layer.outputs}`), h("td", { class: "number" }, layer.start === null ? String(layer.level) : `${layer.start} → ${layer.level}`), number(layer.keys), h("td", { class: "number" }, bytes(layer.bytes)),
      hasSeconds && h("td", { class: "number" }, layer.seconds ? seconds(layer.seconds) : "")))));
}

function number(count) {
  return h("td", { class: "number" }, count.toLocaleString("en"));
}
