// Where an arrow key leads: along edges up and down, else to the nearest box on that side.

export function nearest(scene, key, direction) {
  const here = scene.byNode.get(key);
  const from = centre(here);
  const along = { down: (edge) => edge.from === here && edge.to, up: (edge) => edge.to === here && edge.from }[direction];
  if (along) {
    const linked = scene.edges.map(along).filter(Boolean);
    const best = least(linked, (box) => Math.abs(centre(box)[0] - from[0]) + (direction === "up" && isSmall(box) ? 1e4 : 0));
    if (best) return best.key;
  }
  const ahead = { up: [0, -1], down: [0, 1], left: [-1, 0], right: [1, 0] }[direction];
  const others = [...scene.boxes, ...scene.frames].filter((box) => box !== here && forward(from, centre(box), ahead) > 1);
  const best = least(others, (box) => {
    const [dx, dy] = [centre(box)[0] - from[0], centre(box)[1] - from[1]];
    return Math.hypot(dx, dy) + 3 * Math.abs(ahead[0] ? dy : dx);
  });
  return best ? best.key : null;
}

function centre(box) {
  return [box.x + box.w / 2, box.y + (box.inner ? 15 : box.h / 2)];
}

function isSmall(box) {
  return box.h < 40;
}

function forward(from, to, ahead) {
  return (to[0] - from[0]) * ahead[0] + (to[1] - from[1]) * ahead[1];
}

function least(boxes, cost) {
  return boxes.reduce((best, box) => (!best || cost(box) < cost(best) ? box : best), null);
}
