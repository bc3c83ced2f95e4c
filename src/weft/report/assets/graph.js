// The graph: boxes that open, edges that say what moves, found by pointer and by keys.

import { Camera } from "./camera.js";
import { clip, h, svg } from "./dom.js";
import { bytes, counted } from "./format.js";
import { nearest } from "./neighbours.js";
import { curve, makeScene, outline, shapeWords, title } from "./scene.js";

const MANY = 500, SKETCH = 900;

export class GraphView {
  constructor(onselect) {
    this.onselect = onselect;
    this.layer = svg("g", {});
    this.svg = svg("svg", { class: "graph", role: "group", "aria-label": "The graph of the plan. Arrow keys go from box to box, Enter opens, Escape closes." }, this.layer);
    this.status = h("div", { class: "graph-status", role: "status" });
    this.find = h("input", { type: "search", placeholder: "Find a value or an operator", "aria-label": "Find a value or an operator", autocomplete: "off" });
    this.hits = h("div", { class: "hits", role: "listbox", "aria-label": "Found", hidden: true });
    this.foldAll = h("button", { type: "button", onclick: () => this.toggleAll() }, "Open all");
    const button = (text, label, action) => h("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
    this.tools = h("div", { class: "graph-tools" },
      h("div", { class: "finder" }, this.find, this.hits), this.foldAll,
      button("−", "Zoom out", () => this.camera.zoom(0.8)), button("+", "Zoom in", () => this.camera.zoom(1.25)),
      button("Fit", "Show all of it", () => this.camera.whole(this.scene.width, this.scene.height)));
    this.frame = h("div", { class: "graph-frame" }, this.svg, this.legend(), this.status);
    this.element = h("section", { class: "graph-view", "aria-label": "Graph" }, this.tools, this.frame);
    this.camera = new Camera(this.frame, () => this.moved());
    this.frame.addEventListener("click", (event) => this.clicked(event));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.find.addEventListener("input", () => this.search());
    this.find.addEventListener("keydown", (event) => this.findKey(event));
    new ResizeObserver(() => this.resized()).observe(this.frame);
  }

  legend() {
    const line = (kind) => svg("svg", { width: 26, height: 8, "aria-hidden": "true" }, svg("path", { class: `edge ${kind}`, d: "M1 4H25" }));
    return h("div", { class: "graph-legend" }, h("span", {}, line("moves"), "moves bytes"), h("span", {}, line("partial"), "partial"));
  }

  show(plan) {
    const before = this.plan;
    this.plan = plan;
    this.shape = outline(plan);
    this.open = new Set();
    this.current = null;
    this.selected = null;
    this.slowest = Math.max(1e-30, ...plan.nodes.map((node) => node.seconds || 0));
    this.foldAll.hidden = !plan.groups.length;
    this.find.value = "";
    this.search();
    this.rebuild();
    if (!before || this.isFitted) this.camera.fit(this.scene.width, this.scene.height);
    this.isFitted = true;
  }

  resized() {
    if (!this.plan) return;
    const [width, height] = this.camera.size, [wide, high] = this.sized || [width, height];
    if (!this.sized || this.camera.isFitted) this.camera.fit(this.scene.width, this.scene.height);
    else this.camera.pan((width - wide) / 2, (height - high) / 2);
    if (this.frame.clientHeight) this.sized = [width, height];
    const box = this.selected && this.scene.byNode.get(this.selected);
    if (box) this.camera.show(box);
  }

  rebuild() {
    this.scene = makeScene(this.plan, this.shape, this.open);
    this.drawnView = null;
    const groups = this.plan.groups.length;
    this.foldAll.textContent = this.open.size < groups ? "Open all" : "Fold all";
    if (!this.current || !this.scene.byNode.has(this.current)) this.current = this.scene.boxes[0]?.key ?? null;
    this.draw();
  }

  moved() {
    if (!this.scene) return;
    const { x, y, scale } = this.camera;
    this.layer.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)}) scale(${scale.toFixed(4)})`);
    this.svg.classList.toggle("is-far", scale < 0.4);
    const view = this.camera.view, drawn = this.drawnView;
    const isOut = !drawn || view.x < drawn.x || view.y < drawn.y || view.x + view.w > drawn.x + drawn.w || view.y + view.h > drawn.y + drawn.h;
    if (isOut || drawn.w > 6 * view.w) this.draw();
  }

  // Draw what is in sight and as much around it; too much of it is drawn as a sketch.
  draw() {
    const { scene } = this;
    const few = scene.boxes.length + scene.edges.length <= MANY;
    const view = this.camera.view;
    const wide = few ? { x: -1e9, y: -1e9, w: 2e9, h: 2e9 } : { x: view.x - view.w / 2, y: view.y - view.h / 2, w: view.w * 2, h: view.h * 2 };
    const meets = (box) => box.x < wide.x + wide.w && box.x + box.w > wide.x && box.y < wide.y + wide.h && box.y + box.h > wide.y;
    const boxes = scene.boxes.filter(meets), frames = scene.frames.filter(meets);
    const edges = scene.edges.filter((edge) => meets(around(edge.points)));
    const focused = this.svg.contains(document.activeElement) ? this.current : null;
    this.drawnView = wide;
    this.elements = new Map();
    if (boxes.length > SKETCH) this.layer.replaceChildren(...this.sketch(frames, boxes, edges));
    else this.layer.replaceChildren(...frames.map((box) => this.frameBox(box)), ...edges.map((edge) => this.edge(edge)), ...boxes.map((box) => this.box(box)));
    this.mark();
    if (focused) this.elements.get(focused)?.focus({ preventScroll: true });
    const hidden = this.plan.nodes.length - scene.boxes.filter((box) => box.node !== undefined).length;
    this.status.textContent = hidden ? `${counted(hidden, "node")} folded` : "";
  }

  sketch(frames, boxes, edges) {
    const rects = (some) => some.map((box) => `M${box.x} ${box.y}h${box.w}v${box.h}h${-box.w}z`).join("");
    const lines = (some) => some.map((edge) => curve(edge.points)).join("");
    return [
      svg("path", { class: "frame", d: rects(frames) }),
      svg("path", { class: "edge", d: lines(edges.filter((edge) => !edge.bytes)) }),
      svg("path", { class: "edge moves", d: lines(edges.filter((edge) => edge.bytes)) }),
      svg("path", { class: "node-back", d: rects(boxes) }),
    ];
  }

  edge(edge) {
    const moving = edge.bytes > 0;
    const d = curve(edge.points);
    const wide = moving ? 1.6 + Math.min(4, Math.log10(edge.bytes + 1) / 2.6) : undefined;
    const line = svg("path", { class: `edge${moving ? " moves" : ""}${edge.partial ? " partial" : ""}`, d, "stroke-width": wide });
    const hit = svg("path", { class: "edge-hit", d });
    const parts = [line, hit];
    if (moving) {
      parts.push(this.pill(...middle(edge.points), edge.bytes));
    }
    const key = `e${edge.edges.join(",")}`;
    const names = edge.edges.map((n) => this.plan.values[this.plan.edges[n][2]].name).join(", ");
    const group = svg("g", { class: "edge-group", "data-key": key, "data-value": names }, parts);
    group.edge = edge;
    this.elements.set(key, group);
    return group;
  }

  pill(x, y, size) {
    const text = bytes(size), width = text.length * 6.4 + 12;
    return svg("g", { class: "edge-label", transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` },
      svg("rect", { x: -width / 2, y: -9, width, height: 18, rx: 9 }), svg("text", { y: 4 }, text));
  }

  frameBox(box) {
    const name = this.plan.groups[box.group].title;
    const element = svg("g", { class: "node opened", "data-key": box.key, role: "button", tabindex: "-1", "aria-expanded": "true", "aria-label": `${name}, open`, transform: `translate(${box.x} ${box.y})` },
      svg("rect", { class: "frame", width: box.w, height: box.h, rx: 12 }),
      svg("rect", { class: "frame-bar", width: box.w, height: 30, rx: 12 }),
      svg("text", { class: "frame-title", x: 14, y: 20 }, `▾ ${clip(name, 34)}`));
    this.elements.set(box.key, element);
    return element;
  }

  box(box) {
    const element = box.group === undefined ? this.nodeBox(box) : this.groupBox(box);
    this.elements.set(box.key, element);
    return element;
  }

  groupBox(box) {
    const { title: name, kind } = this.plan.groups[box.group], sum = this.shape.inside[box.group];
    const moved = sum.bytes ? ` · ${bytes(sum.bytes)}` : "";
    const label = `${name}, ${counted(sum.operators, "operator")}${sum.bytes ? `, ${bytes(sum.bytes)} move inside` : ""}, folded`;
    return svg("g", { class: `node folded ${kind}`, "data-key": box.key, role: "button", tabindex: "-1", "aria-expanded": "false", "aria-label": label, transform: `translate(${box.x} ${box.y})` },
      svg("rect", { class: "under", x: 4, y: 5, width: box.w, height: box.h, rx: 10 }),
      svg("rect", { class: "node-back", width: box.w, height: box.h, rx: 10 }),
      svg("text", { class: "node-title", x: 14, y: 23 }, `▸ ${clip(name, 26)}`),
      svg("text", { class: "node-sub", x: 14, y: 42 }, counted(sum.operators, "operator"), svg("tspan", { class: "moved" }, moved)));
  }

  nodeBox(box) {
    const node = this.plan.nodes[box.node], name = title(this.plan, node);
    const value = node.values.length ? this.plan.values[node.values[0]] : null;
    const label = node.kind === "operator" ? `${name} makes ${value ? value.name : "nothing"}` : `${node.kind} ${name}`;
    const parts = [svg("rect", { class: "node-back", width: box.w, height: box.h, rx: node.kind === "operator" ? 8 : box.h / 2 })];
    if (node.kind === "operator") {
      const part = (node.seconds || 0) / this.slowest;
      if (part > 0.02) parts.push(svg("rect", { class: "node-time", x: 8, y: box.h - 4, width: Math.max(2, (box.w - 16) * part), height: 2, rx: 1 }));
      parts.push(svg("text", { class: "node-title", x: box.w / 2, y: 20, "text-anchor": "middle" }, clip(name, 26)));
      if (value) parts.push(svg("text", { class: "node-sub", x: box.w / 2, y: 37, "text-anchor": "middle" }, this.words(node.values[0])));
      if (node.settles) parts.push(this.pill(box.w / 2, box.h + 12, node.settles.reduce((sum, move) => sum + this.plan.moves[move].bytes, 0)));
    } else {
      parts.push(svg("text", { class: "node-name", x: box.w / 2, y: 20, "text-anchor": "middle" }, clip(name, 26)));
    }
    return svg("g", { class: `node ${node.kind}`, "data-key": box.key, role: "button", tabindex: "-1", "aria-label": label, transform: `translate(${box.x} ${box.y})` }, parts);
  }

  words(value) {
    const words = shapeWords(this.plan, value);
    const long = words.map((word) => word.join(" ")).join(" × ").length > 36;
    if (!words.length) return ["scalar"];
    return words.map(([size, axes], dim) => [dim ? " × " : "", size, axes && svg("tspan", { class: "axis" }, ` ${long ? clip(axes, 6) : axes}`)]);
  }

  // What is chosen, and which box the tab key comes to.
  mark() {
    for (const [key, element] of this.elements) {
      element.classList.toggle("is-selected", key === this.selected);
      if (element.classList.contains("node")) element.setAttribute("tabindex", key === this.current ? "0" : "-1");
    }
    if (this.current && !this.elements.has(this.current)) {
      this.svg.setAttribute("tabindex", "0");
    } else this.svg.removeAttribute("tabindex");
  }

  clicked(event) {
    if (this.camera.wasDragged) return;
    const group = event.target.closest?.("[data-key]");
    if (!group) {
      if (this.elements.size === 0) this.camera.zoom(2.5, event.offsetX, event.offsetY);
      return;
    }
    const key = group.dataset.key;
    if (key.startsWith("e")) this.select(key, { edges: group.edge.edges });
    else {
      this.current = key;
      this.mark();
      group.focus({ preventScroll: true });
      this.enter(key);
    }
  }

  // Open a group, close one that is open, or choose a node.
  enter(key) {
    const number = Number(key.slice(1));
    if (key.startsWith("n")) return this.select(key, { node: number });
    return this.toggle(number);
  }

  toggle(group) {
    const before = this.scene.byNode.get(`g${group}`);
    if (this.open.has(group)) {
      for (const inner of [...this.open]) if (this.shape.paths[inner].includes(group)) this.open.delete(inner);
    } else this.open.add(group);
    this.current = `g${group}`;
    this.rebuild();
    const after = this.scene.byNode.get(`g${group}`);
    if (before && after) this.camera.pan((before.x + before.w / 2 - after.x - after.w / 2) * this.camera.scale, (before.y - after.y) * this.camera.scale);
    this.elements.get(this.current)?.focus({ preventScroll: true });
  }

  toggleAll() {
    this.open = this.open.size < this.plan.groups.length ? new Set(this.plan.groups.keys()) : new Set();
    this.rebuild();
    this.camera.fit(this.scene.width, this.scene.height);
  }

  select(key, what) {
    this.selected = key;
    this.mark();
    this.onselect(what);
  }

  clear() {
    this.selected = null;
    this.mark();
  }

  // Bring a node into sight, opening what hides it, and choose it.
  reveal(node) {
    const closed = this.shape.around[node].filter((group) => !this.open.has(group));
    closed.forEach((group) => this.open.add(group));
    this.current = `n${node}`;
    if (closed.length) this.rebuild();
    const box = this.scene.byNode.get(this.current);
    if (box) this.camera.show(box);
    this.moved();
    this.select(this.current, { node });
    this.elements.get(this.current)?.focus({ preventScroll: true });
  }

  // The same for an edge; `n` is its number in the plan.
  revealEdge(n) {
    const [start, end] = this.plan.edges[n];
    const closed = [...this.shape.around[start], ...this.shape.around[end]].filter((group) => !this.open.has(group));
    closed.forEach((group) => this.open.add(group));
    this.current = `n${end}`;
    if (closed.length) this.rebuild();
    this.camera.show(this.scene.byNode.get(this.current));
    this.moved();
    const edge = this.scene.edges.find((one) => one.edges.includes(n));
    this.select(`e${edge.edges.join(",")}`, { edges: [n] });
  }

  key(event) {
    const directions = { ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right" };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (this.current) this.enter(this.current);
    } else if (directions[event.key] && this.current) {
      event.preventDefault();
      const goal = nearest(this.scene, this.current, directions[event.key]);
      if (goal) this.step(goal);
    } else if (event.key === "Escape") this.escape(event);
    else if (event.key === "+" || event.key === "=") this.camera.zoom(1.25);
    else if (event.key === "-") this.camera.zoom(0.8);
    else if (event.key === "0") this.camera.whole(this.scene.width, this.scene.height);
  }

  step(key) {
    this.current = key;
    this.camera.show(this.scene.byNode.get(key));
    this.moved();
    this.mark();
    this.elements.get(key)?.focus({ preventScroll: true });
  }

  // Close what is shown beside the graph; with nothing shown, the group around.
  escape(event) {
    if (this.selected) return;
    const number = Number(this.current?.slice(1));
    const groups = this.current?.startsWith("n") ? this.shape.around[number] : this.shape.paths[number]?.filter((group) => this.open.has(group));
    const last = groups?.[groups.length - 1];
    if (last === undefined || !this.open.has(last)) return;
    event.stopPropagation();
    this.toggle(last);
  }

  search() {
    const wanted = this.find.value.trim().toLowerCase();
    const names = (node) => [title(this.plan, node), ...node.values.map((value) => this.plan.values[value].name)];
    const found = wanted ? this.plan.nodes.map((node, n) => [n, names(node)]).filter(([, texts]) => texts.some((text) => text.toLowerCase().includes(wanted))).slice(0, 8) : [];
    this.hits.hidden = !wanted;
    this.hits.replaceChildren(...found.map(([n, texts]) => h("button", { type: "button", role: "option", onclick: () => this.choose(n) }, h("b", {}, clip(texts[0], 30)), " ", clip(texts.slice(1).join(", "), 40))));
    if (wanted && !found.length) this.hits.append(h("span", {}, "nothing is named so"));
  }

  choose(node) {
    this.find.value = "";
    this.search();
    this.reveal(node);
  }

  findKey(event) {
    if (event.key === "Enter") this.hits.querySelector("button")?.click();
    if (event.key === "Escape") { this.find.value = ""; this.search(); event.stopPropagation(); }
    if (event.key === "ArrowDown") { event.preventDefault(); this.hits.querySelector("button")?.focus(); }
  }
}

function around(points) {
  const xs = points.map((point) => point[0]), ys = points.map((point) => point[1]);
  const x = Math.min(...xs), y = Math.min(...ys);
  return { x, y, w: Math.max(...xs) - x + 1, h: Math.max(...ys) - y + 1 };
}

function middle(points) {
  if (points.length % 2) return points[(points.length - 1) / 2];
  const [a, b] = [points[points.length / 2 - 1], points[points.length / 2]];
  return [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
}
