// A layered drawing of a graph without cycles: who uses something stands below who makes it.
//
// Ranks by the longest way, order by the mean of neighbours, places by least squares. Long links
// are led around boxes through places of their own.

const ACROSS = 26, DOWN = 46, LONGEST = 40, SWEEPS = 8;

// items: [{ w, h }], links: [[from, to]]; gives [{ x, y }] for items, ways of links, and the size.
export function layered(items, links) {
  if (!items.length) return { places: [], ways: [], width: 0, height: 0 };
  const rank = ranks(items, links);
  const nodes = items.map((item, n) => ({ w: item.w, h: item.h, rank: rank[n], up: [], down: [], at: n, isDummy: item.isEntry }));
  const chains = links.map(([a, b]) => chain(nodes, a, b));
  const rows = [];
  for (const node of nodes) (rows[node.rank] ||= []).push(node);
  const full = Array.from(rows, (row) => row || []);
  order(full);
  place(full);
  return measured(nodes, chains, full, items.length);
}

function ranks(items, links) {
  const count = items.length, below = Array.from({ length: count }, () => []), above = new Array(count).fill(0);
  for (const [a, b] of links) { below[a].push(b); above[b]++; }
  const waiting = [...above], rank = new Array(count).fill(0), queue = [];
  waiting.forEach((left, n) => { if (!left) queue.push(n); });
  for (let at = 0; at < queue.length; at++) {
    for (const next of below[queue[at]]) {
      rank[next] = Math.max(rank[next], rank[queue[at]] + 1);
      if (--waiting[next] === 0) queue.push(next);
    }
  }
  // What nothing leads to stands just above the first who uses it; what comes from outside, on top.
  for (const n of queue) {
    if (!above[n] && below[n].length && !items[n].isEntry) rank[n] = Math.min(...below[n].map((next) => rank[next])) - 1;
  }
  const least = Math.min(...rank);
  return rank.map((one) => one - least);
}

// The nodes on the way of a link, both ends included; a place in every rank between.
function chain(nodes, a, b) {
  const way = [nodes[a]], low = nodes[a].rank, high = nodes[b].rank;
  if (high - low <= LONGEST) {
    for (let rank = low + 1; rank < high; rank++) {
      const dummy = { w: 6, h: 0, rank, up: [], down: [], at: nodes.length, isDummy: true };
      nodes.push(dummy);
      way.push(dummy);
    }
  }
  way.push(nodes[b]);
  if (high - low <= LONGEST) {
    for (let n = 1; n < way.length; n++) { way[n - 1].down.push(way[n]); way[n].up.push(way[n - 1]); }
  }
  return way;
}

function order(rows) {
  rows.forEach((row) => row.forEach((node, n) => { node.place = n; }));
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const side = sweep % 2 ? "down" : "up";
    const walk = sweep % 2 ? [...rows].reverse() : rows;
    for (const row of walk) {
      for (const node of row) {
        const near = node[side];
        node.wish = near.length ? near.reduce((sum, one) => sum + one.place / Math.max(1, rows[one.rank].length), 0) / near.length : node.place / Math.max(1, row.length);
      }
      row.sort((one, two) => one.wish - two.wish || one.at - two.at);
      row.forEach((node, n) => { node.place = n; });
    }
  }
}

function place(rows) {
  for (const row of rows) {
    let x = 0;
    for (const node of row) { node.x = x + node.w / 2; x += node.w + ACROSS; }
    const half = (x - ACROSS) / 2;
    for (const node of row) node.x -= half;
  }
  for (let sweep = 0; sweep < 3 * SWEEPS; sweep++) {
    const walk = sweep % 2 ? [...rows].reverse() : rows;
    const sides = sweep < SWEEPS ? (sweep % 2 ? ["down"] : ["up"]) : ["up", "down"];
    for (const row of walk) {
      for (const node of row) node.wish = wish(node, sides);
      apart(row);
    }
  }
}

// The mean of neighbours; small ones, as inputs are, pull less.
function wish(node, sides) {
  let sum = 0, weight = 0;
  for (const side of sides) {
    for (const near of node[side]) {
      const pull = near.isDummy && !node.isDummy ? 0.25 : near.isDummy || near.h > 40 ? 1 : 0.1;
      sum += near.x * pull;
      weight += pull;
    }
  }
  return weight ? sum / weight : node.x;
}

// The places nearest to what is wished, in order and with room between: pools of neighbours.
function apart(row) {
  const pools = [];
  let offset = 0;
  row.forEach((node, n) => {
    if (n) offset += (row[n - 1].w + node.w) / 2 + (node.isDummy || row[n - 1].isDummy ? ACROSS / 2 : ACROSS);
    node.offset = offset;
    const weight = node.isDummy ? 4 : 1;
    pools.push({ sum: (node.wish - offset) * weight, weight, nodes: [node] });
    while (pools.length > 1) {
      const last = pools[pools.length - 1], before = pools[pools.length - 2];
      if (before.sum / before.weight <= last.sum / last.weight) break;
      before.sum += last.sum;
      before.weight += last.weight;
      before.nodes.push(...last.nodes);
      pools.pop();
    }
  });
  for (const pool of pools) {
    for (const node of pool.nodes) node.x = pool.sum / pool.weight + node.offset;
  }
}

function measured(nodes, chains, rows, count) {
  let y = 0;
  for (const row of rows) {
    const height = Math.max(0, ...row.map((node) => node.h));
    for (const node of row) node.y = y + height / 2;
    y += height + DOWN;
  }
  let left = Infinity, right = -Infinity;
  for (const node of nodes) {
    left = Math.min(left, node.x - node.w / 2);
    right = Math.max(right, node.x + node.w / 2);
  }
  for (const node of nodes) node.x -= left;
  return {
    places: nodes.slice(0, count).map((node) => ({ x: node.x - node.w / 2, y: node.y - node.h / 2 })),
    ways: chains.map((way) => way.slice(1, -1).map((node) => [node.x, node.y])),
    width: right - left,
    height: y - DOWN,
  };
}
