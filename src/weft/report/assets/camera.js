// Pan and zoom of a drawing: by pointer, wheel and pinch, once a frame at most.

const LEAST = 0.02, MOST = 3, TOP = 60;

export class Camera {
  constructor(frame, onmove) {
    Object.assign(this, { frame, onmove, x: 0, y: 0, scale: 1, isAsked: false, pointers: new Map(), travel: 0 });
    frame.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    frame.addEventListener("pointerdown", (event) => this.press(event));
    frame.addEventListener("pointermove", (event) => this.drag(event));
    for (const end of ["pointerup", "pointercancel"]) frame.addEventListener(end, (event) => this.release(event));
  }

  get size() {
    return [this.frame.clientWidth || 1, this.frame.clientHeight || 1];
  }

  // What is seen, in the drawing's own units.
  get view() {
    const [width, height] = this.size;
    return { x: -this.x / this.scale, y: -this.y / this.scale, w: width / this.scale, h: height / this.scale };
  }

  ask() {
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame(() => { this.isAsked = false; this.onmove(this); });
  }

  pan(dx, dy) {
    this.isFitted = false;
    this.x += dx;
    this.y += dy;
    this.ask();
  }

  zoom(factor, x, y) {
    this.isFitted = false;
    const [width, height] = this.size;
    const [cx, cy] = [x ?? width / 2, y ?? height / 2];
    const scale = Math.min(MOST, Math.max(LEAST, this.scale * factor));
    this.x = cx - ((cx - this.x) * scale) / this.scale;
    this.y = cy - ((cy - this.y) * scale) / this.scale;
    this.scale = scale;
    this.ask();
  }

  // All of it, as large as is readable; a long drawing is shown from its top.
  fit(width, height, readable = 0.62) {
    const [w, h] = this.size;
    const all = Math.min((w - 32) / width, (h - TOP - 16) / height, 1.15);
    this.scale = Math.max(LEAST, all < readable ? Math.max(all, Math.min(readable, (w - 32) / width)) : all);
    this.x = (w - width * this.scale) / 2;
    this.y = Math.max(TOP, (h - height * this.scale) / 2);
    this.isFitted = true;
    this.ask();
  }

  whole(width, height) {
    this.fit(width, height, 0);
  }

  // Bring a box into sight, moving no more than it takes.
  show(box, margin = 60) {
    const [w, h] = this.size;
    if (this.scale < 0.35) this.zoom(0.8 / this.scale);
    const left = box.x * this.scale + this.x, top = box.y * this.scale + this.y;
    const wide = box.w * this.scale, high = box.h * this.scale;
    if (left < margin) this.x += margin - left;
    else if (left + wide > w - margin) this.x += w - margin - left - wide;
    if (top < margin) this.y += margin - top;
    else if (top + high > h - margin) this.y += h - margin - top - high;
    this.ask();
  }

  wheel(event) {
    event.preventDefault();
    const edge = this.frame.getBoundingClientRect();
    const step = event.deltaMode === 1 ? event.deltaY * 20 : event.deltaY;
    this.zoom(Math.exp(-Math.max(-240, Math.min(240, step)) * (event.ctrlKey ? 0.008 : 0.0022)), event.clientX - edge.left, event.clientY - edge.top);
  }

  press(event) {
    if (event.button > 0) return;
    if (!this.pointers.size) this.travel = 0;
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
  }

  drag(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const now = [event.clientX, event.clientY];
    const [dx, dy] = [now[0] - before[0], now[1] - before[1]];
    this.travel += Math.abs(dx) + Math.abs(dy);
    if (this.travel > 4 && !this.frame.hasPointerCapture(event.pointerId)) this.frame.setPointerCapture(event.pointerId);
    if (this.pointers.size === 2) this.pinch(event.pointerId, before, now);
    else this.pan(dx, dy);
    this.pointers.set(event.pointerId, now);
  }

  pinch(id, before, now) {
    const [other] = [...this.pointers].filter(([key]) => key !== id).map(([, place]) => place);
    const apart = (one) => Math.hypot(one[0] - other[0], one[1] - other[1]) || 1;
    const edge = this.frame.getBoundingClientRect();
    this.zoom(apart(now) / apart(before), (now[0] + other[0]) / 2 - edge.left, (now[1] + other[1]) / 2 - edge.top);
  }

  release(event) {
    this.pointers.delete(event.pointerId);
  }

  // Whether a click ends a drag, and is meant for nothing.
  get wasDragged() {
    return this.travel > 4;
  }
}
