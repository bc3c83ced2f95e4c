// Boxes of cells, by the one rule: a dimension of size n that is cut K ways has blocks of ceil(n/K),
// or ends each block at a given cut point.

export function meshSize(mesh) {
  return mesh.axes.reduce((size, axis) => size * axis[1], 1);
}

export function coordinate(mesh, rank) {
  const at = [];
  for (let n = mesh.axes.length - 1; n >= 0; n--) {
    at.unshift(rank % mesh.axes[n][1]);
    rank = Math.floor(rank / mesh.axes[n][1]);
  }
  return at;
}

export function device(mesh, rank) {
  return mesh.devices ? mesh.devices[rank] : rank;
}

function digitOf(at, [dim, divisor, radix]) {
  return Math.floor(at[dim] / divisor) % radix;
}

// How many blocks each dimension is cut into.
export function grid(layout) {
  return layout.digits.map((cut) => cut.reduce((size, digit) => size * digit[2], 1));
}

// The block that a cell holds, in each dimension.
export function block(layout, at) {
  return layout.digits.map((cut) => cut.reduce((sum, digit) => sum + digitOf(at, digit) * digit[3], 0));
}

export function interval(layout, dim, number) {
  const size = layout.shape[dim], count = grid(layout)[dim];
  const points = layout.cut_points && layout.cut_points[dim];
  if (points) return [number ? points[number - 1] : 0, number < count - 1 ? points[number] : size];
  const extent = Math.ceil(size / count);
  return [Math.min(extent * number, size), Math.min(extent * (number + 1), size)];
}

export function boxOf(layout, at) {
  const numbers = block(layout, at);
  const sides = numbers.map((number, dim) => interval(layout, dim, number));
  return { start: sides.map((side) => side[0]), stop: sides.map((side) => side[1]) };
}

// The block as one number, row-major, and how many there are.
export function blockNumber(layout, at) {
  const counts = grid(layout), numbers = block(layout, at);
  const number = counts.reduce((sum, count, dim) => sum * count + numbers[dim], 0);
  return [number, counts.reduce((product, count) => product * count, 1)];
}

// Which part of a partial array a cell holds, in words.
export function partOf(layout, at) {
  return layout.parts.map(([digit, monoid]) => `part ${digitOf(at, digit) + 1} of ${digit[2]} (${monoid})`).join(", ");
}
