// What is seen of a plan while some of its groups are open: boxes and edges with their places.

import { layered } from "./layered.js";
import { clip } from "./dom.js";

const PAD = 18, BAR = 30, LETTER = 7.1, BOLD = 8.2;

// For every node the groups around it, outermost first; for every group what it holds.
export function outline(plan) {
  const paths = [];
  plan.groups.forEach((group, n) => { paths[n] = group.parent < 0 ? [n] : [...paths[group.parent], n]; });
  const around = plan.nodes.map((node) => (node.group < 0 ? [] : paths[node.group]));
  const inside = plan.groups.map(() => ({ nodes: 0, operators: 0, bytes: 0, seconds: 0, kinds: new Map() }));
  plan.nodes.forEach((node, n) => {
    for (const group of around[n]) {
      const sum = inside[group];
      sum.nodes++;
      if (node.kind !== "operator") continue;
      sum.operators++;
      sum.seconds += node.seconds;
      sum.kinds.set(node.operator, (sum.kinds.get(node.operator) || 0) + 1);
    }
  });
  const count = (n, moves) => {
    for (const group of around[n]) for (const move of moves) inside[group].bytes += plan.moves[move].bytes;
  };
  plan.edges.forEach(([, end, , moves]) => count(end, moves || []));
  plan.nodes.forEach((node, n) => count(n, node.settles || []));
  return { paths, around, inside };
}

export function title(plan, node) {
  return node.kind === "operator" ? node.operator : plan.values[node.values[0]].name;
}

export function shapeWords(plan, value) {
  const { shape, layout } = plan.values[value], axes = plan.layouts[layout].axes;
  return shape.map((size, dim) => [String(size), axes[dim].replace(/[{}"]/g, "").replace(/, /g, " ")]);
}

function sizeOf(plan, node) {
  const head = clip(title(plan, node), 26);
  if (node.kind !== "operator") return { w: Math.max(46, head.length * LETTER + 26), h: 30 };
  const words = node.values.length ? shapeWords(plan, node.values[0]) : [];
  const below = words.map(([size, axes]) => size + (axes ? ` ${axes}` : "")).join(" × ");
  return { w: Math.max(88, Math.min(250, Math.max(head.length * BOLD, below.length * 6.2) + 28)), h: 48 };
}

function folded(summary, name) {
  return { w: Math.max(170, clip(name, 26).length * LETTER + 46), h: 56, summary };
}

export function makeScene(plan, shape, open) {
  const scene = { boxes: [], frames: [], edges: [], entries: new Map(), byNode: new Map(), byGroup: new Map() };
  const seen = plan.nodes.map((_, n) => {
    const closed = shape.around[n].findIndex((group) => !open.has(group));
    return closed < 0 ? { path: shape.around[n], key: `n${n}` } : { path: shape.around[n].slice(0, closed), key: `g${shape.around[n][closed]}` };
  });
  const joined = join(plan, seen);
  const levels = byLevel(plan, shape, open, joined);
  const whole = arrange(plan, shape, open, levels, -1);
  put(plan, scene, whole, 0, 0);
  scene.width = whole.width;
  scene.height = whole.height;
  scene.edges = joined.map((edge) => drawn(scene, edge)).filter(Boolean);
  spread(scene);
  return scene;
}

// Edges between what is seen; those between the same two are one.
function join(plan, seen) {
  const found = new Map();
  plan.edges.forEach(([start, end, value, moves], n) => {
    const a = seen[start], b = seen[end];
    if (a.key === b.key) return;
    const key = `${a.key} ${b.key}`;
    if (!found.has(key)) found.set(key, { a, b, edges: [], bytes: 0, moves: 0, partial: false });
    const edge = found.get(key);
    edge.edges.push(n);
    for (const move of moves || []) { edge.bytes += plan.moves[move].bytes; edge.moves++; }
    if (plan.layouts[plan.values[value].layout].parts.length) edge.partial = true;
  });
  return [...found.values()];
}

// The items and links of every open level.
function byLevel(plan, shape, open, joined) {
  const levels = new Map([[-1, { items: [], links: [], keys: new Map() }]]);
  const isSeen = (group) => shape.paths[group].slice(0, -1).every((outer) => open.has(outer));
  const add = (level, key, item) => {
    const at = levels.get(level);
    at.keys.set(key, at.items.length);
    at.items.push({ key, ...item });
  };
  const order = [];
  plan.nodes.forEach((node, n) => {
    for (const group of shape.around[n]) if (order[group] === undefined) order[group] = n;
  });
  const parts = [];
  plan.groups.forEach((group, g) => { if (isSeen(g)) parts.push([order[g] ?? 0, 0, g]); if (isSeen(g) && open.has(g)) levels.set(g, { items: [], links: [], keys: new Map() }); });
  plan.nodes.forEach((node, n) => { if (shape.around[n].every((group) => open.has(group))) parts.push([n, 1, n]); });
  parts.sort((one, two) => one[0] - two[0] || one[1] - two[1]);
  for (const [, isNode, n] of parts) {
    if (isNode) add(plan.nodes[n].group, `n${n}`, { node: n, ...sizeOf(plan, plan.nodes[n]) });
    else add(plan.groups[n].parent, `g${n}`, { group: n, ...folded(shape.inside[n], plan.groups[n].title) });
  }
  for (const edge of joined) {
    let depth = 0;
    while (depth < edge.a.path.length && depth < edge.b.path.length && edge.a.path[depth] === edge.b.path[depth]) depth++;
    edge.level = depth ? edge.a.path[depth - 1] : -1;
    const one = edge.a.path.length > depth ? `g${edge.a.path[depth]}` : edge.a.key;
    const two = edge.b.path.length > depth ? `g${edge.b.path[depth]}` : edge.b.key;
    const level = levels.get(edge.level);
    edge.link = `${one} ${two}`;
    level.links.push([level.keys.get(one), level.keys.get(two), edge.link]);
    edge.entries = entries(levels, edge, depth, add);
  }
  return levels;
}

// An edge into open groups has a place at the top of each, from which it is led on.
function entries(levels, edge, depth, add) {
  const found = [], path = edge.b.path, key = `in ${edge.a.key}`;
  for (let n = depth; n < path.length; n++) {
    const level = levels.get(path[n]), goal = n + 1 < path.length ? `g${path[n + 1]}` : edge.b.key;
    if (!level.keys.has(key)) add(path[n], key, { isEntry: true, w: 8, h: 0 });
    const link = `${key} ${goal}`;
    level.links.push([level.keys.get(key), level.keys.get(goal), link]);
    found.push([path[n], key, link]);
  }
  return found;
}

// A level with all that is open in it, the innermost first.
function arrange(plan, shape, open, levels, group) {
  const { items, links } = levels.get(group);
  for (const item of items) {
    if (item.group === undefined || !open.has(item.group)) continue;
    item.inner = arrange(plan, shape, open, levels, item.group);
    item.w = Math.max(item.inner.width + 2 * PAD, clip(plan.groups[item.group].title, 26).length * LETTER + 46);
    item.h = item.inner.height + 2 * PAD + BAR;
  }
  const once = [...new Map(links.map((link) => [link[2], link])).values()].filter(([a, b]) => a !== b);
  const { places, ways, width, height } = layered(items, once);
  items.forEach((item, n) => { item.x = places[n].x; item.y = places[n].y; });
  return { group, items, ways: new Map(once.map((link, n) => [link[2], ways[n]])), width, height };
}

function put(plan, scene, level, left, top) {
  scene.byGroup.set(`level ${level.group}`, { level, left, top });
  for (const item of level.items) {
    const box = { ...item, x: left + item.x, y: top + item.y };
    if (item.isEntry) {
      scene.entries.set(`${level.group} ${item.key}`, [box.x + box.w / 2, box.y]);
      continue;
    }
    if (item.inner) {
      scene.frames.push(box);
      put(plan, scene, item.inner, box.x + (box.w - item.inner.width) / 2, box.y + PAD + BAR);
    } else {
      scene.boxes.push(box);
    }
    scene.byNode.set(item.key, box);
  }
}

function drawn(scene, edge) {
  const from = scene.byNode.get(edge.a.key), to = scene.byNode.get(edge.b.key);
  const way = wayIn(scene, edge.level, edge.link);
  for (const [group, key, link] of edge.entries) way.push(scene.entries.get(`${group} ${key}`), ...wayIn(scene, group, link));
  return { ...edge, from, to, way };
}

function wayIn(scene, group, link) {
  const { level, left, top } = scene.byGroup.get(`level ${group}`);
  return (level.ways.get(link) || []).map(([x, y]) => [left + x, top + y]);
}

// Where edges end: side by side along the top of a box, in the order in which they come.
function spread(scene) {
  const ends = new Map();
  for (const edge of scene.edges) {
    if (!ends.has(edge.to)) ends.set(edge.to, []);
    ends.get(edge.to).push(edge);
  }
  for (const [box, edges] of ends) {
    const came = (edge) => (edge.way.length ? edge.way[edge.way.length - 1][0] : edge.from.x + edge.from.w / 2);
    edges.sort((one, two) => came(one) - came(two));
    edges.forEach((edge, n) => {
      const end = [box.x + (box.w * (n + 1)) / (edges.length + 1), box.y];
      edge.points = [[edge.from.x + edge.from.w / 2, edge.from.y + edge.from.h], ...edge.way, end];
    });
  }
}

// A line through points that leaves and comes in straight down.
export function curve(points) {
  let path = `M${points[0][0].toFixed(1)} ${points[0][1].toFixed(1)}`;
  for (let n = 1; n < points.length; n++) {
    const [x0, y0] = points[n - 1], [x1, y1] = points[n];
    const middle = (y0 + y1) / 2;
    path += `C${x0.toFixed(1)} ${middle.toFixed(1)} ${x1.toFixed(1)} ${middle.toFixed(1)} ${x1.toFixed(1)} ${y1.toFixed(1)}`;
  }
  return path;
}
