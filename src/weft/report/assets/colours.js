// Two palettes that people with any colour vision can tell apart: a ramp from dark blue to yellow
// for what is ordered, and few tones for what is not (after Okabe and Ito).

const STOPS = [[52, 63, 112], [53, 110, 140], [63, 155, 140], [140, 190, 110], [240, 214, 95]];

export function ramp(part) {
  const at = Math.min(1, Math.max(0, part)) * (STOPS.length - 1);
  const low = Math.min(STOPS.length - 2, Math.floor(at));
  const mixed = STOPS[low].map((tone, n) => Math.round(tone + (STOPS[low + 1][n] - tone) * (at - low)));
  return `rgb(${mixed.join(",")})`;
}

// The ink that is readable on a colour of the ramp.
export function inkOn(part) {
  return part > 0.52 ? "#10151c" : "#ffffff";
}

const TONES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b0a72c", "#7d8894"];

export function tone(number) {
  return TONES[Math.min(number, TONES.length - 1)];
}
