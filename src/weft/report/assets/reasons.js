// Why a value lies as it does: step by step back to where it was written, as far as is known.

import { clip, h } from "./dom.js";

const FAR = 12;

export function drawReasons(plan, value, names, goTo) {
  const why = plan.values[value].why || [];
  const list = why.map((reason) => h("li", {}, axisLine(reason), h("ol", { class: "chain" }, chain(plan, value, reason, names, goTo))));
  return h("div", { class: "reasons" },
    list.length ? h("ul", {}, list) : h("p", { class: "hint" }, plan.left ? "left out" : "No dimension of it is cut: every cell holds all of it."),
    list.length ? h("p", { class: "hint" }, source(plan, why)) : null);
}

function axisLine(reason) {
  return h("span", {}, `dimension ${reason.dim} is cut by `, h("b", { class: "axis" }, reason.axis));
}

function chain(plan, value, reason, names, goTo) {
  const lines = [], seen = new Set();
  let at = value, why = reason;
  for (let n = 0; why && n < FAR; n++) {
    lines.push(h("li", {}, line(plan, why, names, goTo)));
    if (why.kind !== "through") return lines;
    at = names.get(why.value);
    const key = `${at} ${why.from}`;
    if (at === undefined || seen.has(key)) return lines;
    seen.add(key);
    const { from, axis } = why;
    why = (plan.values[at].why || []).find((one) => one.dim === from && one.axis === axis);
  }
  if (why) lines.push(h("li", {}, "… and so on; follow the last value"));
  return lines;
}

function line(plan, why, names, goTo) {
  const link = (name) => {
    const number = names.get(name);
    return number === undefined ? name : h("button", { type: "button", class: "link", onclick: () => goTo(number) }, clip(name, 40));
  };
  switch (why.kind) {
    case "written": return ["as written: ", h("code", {}, why.text)];
    case "through": return why.operator
      ? [`through ${clip(why.operator, 30)} from `, link(why.value), `, dimension ${why.from}`]
      : ["lies as ", link(why.value), `, dimension ${why.from}, of the same sharding group`];
    case "made": return [`${clip(why.operator, 30)}, which makes it, is cut along its index dimension `, h("code", {}, why.index)];
    case "used": return [clip(why.operator, 30), ", which uses it to make ", link(why.results[0] ?? ""), ", is cut along its index dimension ", h("code", {}, why.index)];
    default: return ["chosen by the plan; its file does not say why"];
  }
}

function source(plan, why) {
  const followed = why.some((one) => one.kind === "through" || one.kind === "written");
  return followed
    ? "Found by propagating once more what is written on the graph; it agrees with the plan here."
    : "The plan does not keep how it was found. This is what its placements say.";
}
