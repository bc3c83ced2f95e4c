// The timeline of a run: a lane for each worker, drawn on a canvas; it pans and zooms in time.

import { clip, h } from "./dom.js";
import { tone } from "./colours.js";
import { bytes, counted, seconds } from "./format.js";

const LANE = 24, BAR = 17, TOP = 26, PARTS = ["waits for others", "reads storage", "writes storage"];

export class Timeline {
  constructor(run) {
    this.run = run;
    this.low = 0;
    this.high = run.length;
    this.height = TOP + run.lanes.length * LANE + 6;
    this.canvas = h("canvas", { class: "timeline", tabindex: "0", role: "img", "aria-label": `Timeline of ${counted(run.lanes.length, "lane")}. Left and right go from task to task, plus and minus zoom.` });
    this.told = h("p", { class: "hint", role: "status" }, "Point at a task, or use the arrow keys.");
    this.element = h("section", { class: "timeline-frame" }, h("h3", {}, "Timeline by worker"), this.legend(), h("div", { class: "timeline-scroll" }, this.canvas), this.told);
    this.tasks = run.lanes.flatMap((lane, row) => lane.spans.map((span) => [row, span]));
    this.at = null;
    new ResizeObserver(() => this.draw()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("pointerdown", (event) => { this.pressed = event.offsetX; });
    this.canvas.addEventListener("pointerup", () => { this.pressed = null; });
    this.canvas.addEventListener("dblclick", () => this.look(0, this.run.length));
  }

  legend() {
    const shown = this.run.operators.slice(0, 7), more = this.run.operators.length - shown.length;
    const dot = (colour) => { const mark = h("i", { class: "swatch" }); mark.style.background = colour; return mark; };
    const entries = shown.map((name, n) => h("span", {}, dot(tone(n)), clip(name, 28)));
    if (more > 0) entries.push(h("span", {}, dot(tone(7)), `${more} more`));
    if (this.run.lanes_left_out) entries.push(h("span", {}, `${counted(this.run.lanes_left_out, "lane")} left out`));
    return h("div", { class: "legend" }, entries);
  }

  get left() {
    return Math.min(150, 14 + 7 * Math.max(...this.run.lanes.map((lane) => Math.min(18, lane.worker.length)), 4));
  }

  x(time) {
    return this.left + ((time - this.low) / (this.high - this.low)) * (this.wide - this.left - 10);
  }

  time(x) {
    return this.low + ((x - this.left) / (this.wide - this.left - 10)) * (this.high - this.low);
  }

  look(low, high) {
    const length = Math.max(this.run.length / 5000, Math.min(this.run.length, high - low));
    this.low = Math.max(0, Math.min(this.run.length - length, low));
    this.high = this.low + length;
    this.ask();
  }

  ask() {
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame(() => { this.isAsked = false; this.draw(); });
  }

  draw() {
    this.wide = this.element.clientWidth;
    if (!this.wide) return;
    const ratio = window.devicePixelRatio || 1, { canvas, run } = this;
    canvas.width = this.wide * ratio;
    canvas.height = this.height * ratio;
    canvas.style.width = `${this.wide}px`;
    canvas.style.height = `${this.height}px`;
    const pen = canvas.getContext("2d"), style = getComputedStyle(this.element);
    const ink = style.getPropertyValue("--ink"), faint = style.getPropertyValue("--line"), soft = style.getPropertyValue("--soft");
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif";
    this.ticks(pen, soft, faint);
    run.lanes.forEach((lane, row) => {
      const y = TOP + row * LANE;
      pen.fillStyle = ink;
      pen.fillText(clip(lane.worker, 18), 4, y + 13);
      pen.fillStyle = faint;
      pen.fillRect(this.left, y + BAR + 3, this.wide - this.left - 10, 1);
    });
    pen.save();
    pen.beginPath();
    pen.rect(this.left, 0, this.wide - this.left - 10, this.height);
    pen.clip();
    for (const one of this.tasks) this.bar(pen, one, ink);
    pen.restore();
  }

  bar(pen, [row, span], ink) {
    const [begin, end, operator, isAgain, , , parts] = span;
    if (end < this.low || begin > this.high) return;
    const x = this.x(begin), wide = Math.max(1, this.x(end) - x), y = TOP + row * LANE;
    pen.globalAlpha = isAgain ? 0.35 : 1;
    pen.fillStyle = tone(operator);
    pen.fillRect(x, y, wide > 3 ? wide - 0.6 : wide, BAR);
    const waits = (parts[0] + parts[1] + parts[2]) / Math.max(1e-12, end - begin);
    if (waits > 0.01) {
      pen.fillStyle = "rgba(255,255,255,0.55)";
      pen.fillRect(x, y + BAR - 4, wide * Math.min(1, waits), 4);
    }
    pen.globalAlpha = 1;
    if (this.at && this.at[1] === span) {
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      pen.strokeRect(x - 1, y - 1, wide + 2, BAR + 2);
    }
  }

  ticks(pen, soft, faint) {
    const room = this.wide - this.left, wanted = Math.max(2, Math.floor(room / 110)), raw = (this.high - this.low) / wanted;
    const power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
    for (let time = Math.ceil(this.low / step) * step; time <= this.high; time += step) {
      pen.fillStyle = faint;
      pen.fillRect(this.x(time), TOP - 6, 1, this.height - TOP);
      pen.fillStyle = soft;
      if (this.x(time) < this.wide - 56) pen.fillText(seconds(Math.max(0, Number(time.toPrecision(12)))), this.x(time) + 3, 12);
    }
  }

  point(event) {
    if (this.pressed !== null && this.pressed !== undefined && event.buttons) {
      const by = this.time(this.pressed) - this.time(event.offsetX);
      this.pressed = event.offsetX;
      this.look(this.low + by, this.high + by);
      return;
    }
    const row = Math.floor((event.offsetY - TOP) / LANE), time = this.time(event.offsetX);
    const near = (2 * (this.high - this.low)) / Math.max(1, this.wide);
    this.tell(this.tasks.find(([lane, span]) => lane === row && span[0] - near <= time && time <= span[1] + near) || null);
  }

  tell(task) {
    if (task === this.at) return;
    this.at = task;
    if (task) this.told.textContent = this.words(task);
    this.ask();
  }

  words([row, [begin, end, operator, isAgain, count, received, parts, what, cell]]) {
    const name = this.run.operators[operator];
    const waits = parts.map((part, n) => (part > 0 ? `${PARTS[n]} ${seconds(part)}` : "")).filter(Boolean);
    const told = [count > 1 ? `${counted(count, "short task")}, mostly ${name}` : `${name}: ${what} on cell ${cell}`, `${seconds(end - begin)} from ${seconds(begin)}`, this.run.lanes[row].worker];
    if (received) told.push(`received ${bytes(received)}`);
    return [...told, ...waits, ...(isAgain ? ["made again"] : [])].join(" · ");
  }

  wheel(event) {
    if (!event.ctrlKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY) && !event.shiftKey) return;
    event.preventDefault();
    if (event.ctrlKey) this.zoom(Math.exp(event.deltaY * 0.004), this.time(event.offsetX));
    else { const by = ((event.deltaX || event.deltaY) / this.wide) * (this.high - this.low); this.look(this.low + by, this.high + by); }
  }

  zoom(factor, around) {
    const middle = around ?? (this.at ? this.at[1][0] : (this.low + this.high) / 2);
    this.look(middle - (middle - this.low) * factor, middle + (this.high - middle) * factor);
  }

  key(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    if (event.key === "+" || event.key === "=") this.zoom(0.6);
    else if (event.key === "-") this.zoom(1 / 0.6);
    else if (event.key === "0" || event.key === "Escape") this.look(0, this.run.length);
    else if (steps[event.key]) this.step(steps[event.key]);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.lane(event.key === "ArrowDown" ? 1 : -1);
    else return;
    event.preventDefault();
  }

  step(by) {
    const at = this.at ? this.tasks.indexOf(this.at) + by : 0;
    const task = this.tasks[Math.max(0, Math.min(this.tasks.length - 1, at))];
    if (!task) return;
    this.tell(task);
    if (task[1][0] < this.low || task[1][1] > this.high) { const half = (this.high - this.low) / 2; this.look(task[1][0] - half, task[1][0] + half); }
  }

  lane(by) {
    if (!this.at) return this.step(0);
    const [row, span] = this.at, others = this.tasks.filter(([lane]) => lane === row + by);
    const near = others.reduce((best, one) => (!best || Math.abs(one[1][0] - span[0]) < Math.abs(best[1][0] - span[0]) ? one : best), null);
    if (near) this.tell(near);
    return undefined;
  }
}
