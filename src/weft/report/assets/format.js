// Numbers as people read them; bytes to the unit where they are few.

function scaled(number, steps, unit) {
  for (const [power, prefix] of steps) {
    if (number >= power) return `${trim(number / power)} ${prefix}${unit}`;
  }
  return `${trim(number)} ${unit}`;
}

function trim(number) {
  if (number === 0) return "0";
  return number >= 1000 ? Math.round(number).toLocaleString("en") : String(Number(number.toPrecision(3)));
}

const LARGE = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const SMALL = [[1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];

export function bytes(number) {
  return number < 10000 ? `${number} B` : scaled(number, LARGE, "B");
}

export function exactBytes(number) {
  return `${number.toLocaleString("en")} B`;
}

export function seconds(number) {
  return number === 0 ? "0 s" : scaled(number, SMALL, "s");
}

export function operations(number) {
  return scaled(number, LARGE, "flop");
}

// How many times smaller something became.
export function times(ratio) {
  return `${ratio >= 100 ? Math.round(ratio).toLocaleString("en") : ratio.toPrecision(2)}×`;
}

export function inUnit(number, unit) {
  return unit === "s" ? seconds(number) : bytes(number);
}

export function counted(number, noun, plural) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : plural || noun + "s"}`;
}

export function box(start, stop) {
  return `[${start.map((low, dim) => `${low}:${stop[dim]}`).join(", ")}]`;
}
