// What is said of the node, the edge or the group that is chosen.

import { clip, h } from "./dom.js";
import { bytes, counted, operations, seconds } from "./format.js";
import { drawMove } from "./movement.js";
import { drawReasons } from "./reasons.js";
import { title } from "./scene.js";
import { drawSharding } from "./sharding.js";

export class Panel {
  constructor(onclose, goToNode, goToEdge) {
    Object.assign(this, { onclose, goToNode, goToEdge });
    this.body = h("div", { class: "panel-body" });
    this.close = h("button", { type: "button", class: "panel-close", "aria-label": "Close", title: "Close (Escape)", onclick: () => this.hide() }, "×");
    this.element = h("aside", { class: "panel", "aria-label": "What is chosen", hidden: true }, this.close, this.body);
    this.element.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.stopPropagation(); this.hide(); } });
  }

  get isShown() {
    return !this.element.hidden;
  }

  hide() {
    if (!this.isShown) return;
    this.element.hidden = true;
    this.onclose();
  }

  plan(plan) {
    this.current = plan;
    this.names = new Map(plan.values.map((value, n) => [value.name, n]));
    this.makers = new Map();
    plan.nodes.forEach((node, n) => { if (node.kind !== "output") node.values.forEach((value) => this.makers.set(value, n)); });
    this.element.hidden = true;
  }

  show(what) {
    const parts = what.node !== undefined ? this.node(what.node) : this.edges(what.edges);
    this.body.replaceChildren(...parts.flat(2).filter(Boolean));
    this.element.hidden = false;
    this.body.scrollTop = 0;
  }

  goToValue(value) {
    const maker = this.makers.get(value);
    if (maker !== undefined) this.goToNode(maker);
  }

  node(number) {
    const plan = this.current, node = plan.nodes[number];
    const parts = [this.head(node.kind === "operator" ? "Operator" : node.kind, title(plan, node))];
    if (node.kind === "operator") parts.push(...this.operator(node));
    for (const value of node.values) parts.push(this.value(value, node));
    if (node.kind === "output") parts.push(this.section("Wanted as", drawSharding(plan.mesh, plan.layouts[node.wanted], [], this.itemsize(node.values[0]))));
    for (const move of node.settles || []) parts.push(this.section("Moves once it is made", drawMove(plan, plan.moves[move])));
    parts.push(this.ways("Comes from", plan.edges.map((edge, n) => [edge, n]).filter(([edge]) => edge[1] === number), 0));
    parts.push(this.ways("Goes to", plan.edges.map((edge, n) => [edge, n]).filter(([edge]) => edge[0] === number), 1));
    return parts;
  }

  head(kind, name) {
    return h("header", {}, h("p", { class: "eyebrow" }, kind), h("h2", {}, clip(name, 120)));
  }

  section(name, ...parts) {
    return h("section", {}, h("h3", {}, name), parts);
  }

  itemsize(value) {
    return this.current.itemsizes[this.current.values[value].dtype] || 1;
  }

  operator(node) {
    const plan = this.current, layout = plan.layouts[node.space];
    const cost = [node.flops ? operations(node.flops) + " on the busiest cell" : "", node.seconds ? `about ${seconds(node.seconds)}` : ""].filter(Boolean).join(", ");
    const parts = [h("p", { class: "line" }, h("code", {}, node.line)), cost && h("p", { class: "hint" }, cost), node.attributes && h("p", { class: "hint" }, node.attributes)];
    if (!node.index.length) return parts;
    return [...parts, h("details", {}, h("summary", {}, "Which cell computes what"), drawSharding(plan.mesh, layout, node.index))];
  }

  value(value, node) {
    const plan = this.current, said = plan.values[value], layout = plan.layouts[said.layout];
    const what = `${said.dtype}[${said.shape.join(", ")}]`;
    return h("section", { class: "value" }, h("h3", {}, node.kind === "operator" ? ["Makes ", h("b", {}, clip(said.name, 60))] : "Lies as"),
      h("p", { class: "line" }, h("code", {}, what), " ", h("code", {}, layout.text)),
      drawSharding(plan.mesh, layout, [], this.itemsize(value)),
      h("h4", {}, "Why"), drawReasons(plan, value, this.names, (other) => this.goToValue(other)));
  }

  ways(name, edges, side) {
    if (!edges.length) return null;
    const plan = this.current;
    const rows = edges.slice(0, 24).map(([edge, n]) => {
      const moved = (edge[3] || []).reduce((total, move) => total + plan.moves[move].bytes, 0);
      const other = plan.nodes[edge[side]];
      return h("li", {}, h("button", { type: "button", class: "link", onclick: () => this.goToNode(edge[side]) }, clip(side ? title(plan, other) : plan.values[edge[2]].name, 34)),
        h("button", { type: "button", class: moved ? "way moves" : "way", onclick: () => this.goToEdge(n) }, moved ? `moves ${bytes(moved)}` : "nothing moves"));
    });
    return this.section(name, h("ul", { class: "ways" }, rows), edges.length > 24 && h("p", { class: "hint" }, `and ${edges.length - 24} more`));
  }

  edges(numbers) {
    const plan = this.current;
    const sorted = [...numbers].sort((a, b) => this.moved(b) - this.moved(a));
    const parts = [];
    for (const number of sorted.slice(0, 12)) parts.push(...this.edge(number));
    if (sorted.length > 12) parts.push(h("p", { class: "hint" }, `and ${counted(sorted.length - 12, "more value")}, which can be seen when the group is open`));
    return parts;
  }

  moved(number) {
    return (this.current.edges[number][3] || []).reduce((total, move) => total + this.current.moves[move].bytes, 0);
  }

  edge(number) {
    const plan = this.current, [start, end, value, moves] = plan.edges[number];
    const said = plan.values[value], user = plan.nodes[end];
    const route = h("p", { class: "hint" }, h("button", { type: "button", class: "link", onclick: () => this.goToNode(start) }, clip(title(plan, plan.nodes[start]), 30)), " → ",
      h("button", { type: "button", class: "link", onclick: () => this.goToNode(end) }, user.kind === "output" ? "output" : clip(title(plan, user), 30)));
    const parts = [this.head(moves ? "Moves" : "Stays", said.name), route];
    for (const move of moves || []) parts.push(drawMove(plan, plan.moves[move]));
    if (!moves) {
      parts.push(h("p", {}, "Nothing moves: every cell has what it needs."), h("p", { class: "line" }, h("code", {}, plan.layouts[said.layout].text)), drawSharding(plan.mesh, plan.layouts[said.layout], [], this.itemsize(value)));
    }
    return parts;
  }
}
