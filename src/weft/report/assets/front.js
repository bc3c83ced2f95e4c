// The Pareto front: plans as points; the one that is chosen is the plan that is shown.

import { h, roving, svg, titled } from "./dom.js";
import { ramp } from "./colours.js";
import { inUnit } from "./format.js";

const WIDE = 300, HIGH = 200, LEFT = 58, BOTTOM = 34, PAD = 12;
const WORDS = { time: "time", peak_memory: "peak of a cell", bytes: "bytes moved" };

export function drawClaim({ claim, reasons }) {
  if (!claim) return null;
  return h("p", { class: "hint front-claim" }, [claim, ...reasons.map((reason) => `not proved: ${reason}`)].join(". ") + ".");
}

export class FrontView {
  constructor(front, plans, onchoose) {
    Object.assign(this, { front, plans, onchoose, across: 0, up: Math.min(1, front.objectives.length - 1) });
    this.plot = h("div", { class: "front-plot" });
    this.label = h("p", { class: "front-label", "aria-live": "polite" });
    this.element = h("section", { class: "front", "aria-label": "Pareto front" }, h("h3", {}, `${plans.length} plans to choose from`), drawClaim(front), this.axisChoice(), this.plot, this.label);
  }

  axisChoice() {
    const { objectives } = this.front;
    if (objectives.length < 3) return null;
    const pairs = [[0, 1], [0, 2], [1, 2]];
    const choice = h("select", { "aria-label": "What is compared", onchange: () => { [this.across, this.up] = pairs[choice.value]; this.draw(); } },
      pairs.map(([a, b], n) => h("option", { value: n }, `${WORDS[objectives[b]] || objectives[b]} over ${WORDS[objectives[a]] || objectives[a]}`)));
    return choice;
  }

  choose(number) {
    this.chosen = number;
    this.draw();
  }

  scale(column, low, high) {
    const numbers = this.front.points.map((point) => point[column]);
    const least = Math.min(...numbers), most = Math.max(...numbers), room = (most - least) * 0.06 || Math.abs(most) * 0.1 || 1;
    return { least, most, at: (number) => low + ((number - least + room) / (most - least + 2 * room)) * (high - low) };
  }

  draw() {
    const { points, units, objectives, balanced } = this.front;
    const x = this.scale(this.across, LEFT, WIDE - PAD), y = this.scale(this.up, HIGH - BOTTOM, PAD);
    const third = [0, 1, 2].find((n) => n !== this.across && n !== this.up && n < objectives.length);
    const tint = third === undefined ? null : this.scale(third, 0.1, 0.95);
    const text = (column, number) => inUnit(number, units[column]);
    const hadFocus = this.plot.contains(document.activeElement);
    const order = points.map((_, n) => n).sort((a, b) => points[a][this.across] - points[b][this.across]);
    const dots = order.map((n) => {
      const said = objectives.map((name, column) => `${WORDS[name] || name} ${text(column, points[n][column])}`).join(", ");
      const dot = titled(svg("g", { class: "front-point", role: "button", "data-plan": n, "aria-label": `plan ${n}: ${said}`, "aria-current": n === this.chosen ? "true" : null, transform: `translate(${x.at(points[n][this.across])} ${y.at(points[n][this.up])})` },
        svg("circle", { class: "halo", r: 11 }), svg("circle", { class: "dot", r: 6, fill: tint ? ramp(tint.at(points[n][third])) : ramp(0.3) })), `plan ${n}: ${said}`);
      dot.addEventListener("click", () => this.onchoose(n));
      dot.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.onchoose(n); } });
      return dot;
    });
    const painted = [...dots].sort((one, two) => one.hasAttribute("aria-current") - two.hasAttribute("aria-current"));
    const ticks = [
      svg("line", { class: "rule", x1: LEFT, x2: WIDE - 4, y1: HIGH - BOTTOM, y2: HIGH - BOTTOM }), svg("line", { class: "rule", x1: LEFT, x2: LEFT, y1: 4, y2: HIGH - BOTTOM }),
      svg("text", { x: x.at(x.least), y: HIGH - 18, "text-anchor": "start" }, text(this.across, x.least)), x.most > x.least && svg("text", { x: WIDE - 4, y: HIGH - 18, "text-anchor": "end" }, text(this.across, x.most)),
      svg("text", { x: LEFT - 6, y: y.at(y.least) + 4, "text-anchor": "end" }, text(this.up, y.least)), y.most > y.least && svg("text", { x: LEFT - 6, y: y.at(y.most) + 4, "text-anchor": "end" }, text(this.up, y.most)),
      svg("text", { class: "axis-name", x: WIDE - 4, y: HIGH - 4, "text-anchor": "end" }, `${WORDS[objectives[this.across]] || objectives[this.across]} →`),
    ];
    this.plot.replaceChildren(svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "group", "aria-label": "Plans as points. Arrow keys go from one to the next, Enter shows it." }, ticks, painted));
    roving(dots, 1);
    if (hadFocus) dots[order.indexOf(this.chosen)]?.focus();
    const said = objectives.map((name, column) => text(column, points[this.chosen][column])).join(" · ");
    const tinted = third === undefined ? "" : ` Colour is ${WORDS[objectives[third]] || objectives[third]}, dark for few.`;
    this.label.replaceChildren(h("b", {}, `plan ${this.chosen}${this.chosen === balanced ? ", the balanced one" : ""}`), ` ${said}`, h("br"), h("span", { class: "hint" }, this.plans[this.chosen].label + "." + tinted));
  }
}
