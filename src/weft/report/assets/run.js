// A run: predictions beside measurements.

import { clip, h, svg } from "./dom.js";
import { bytes, exactBytes, seconds } from "./format.js";

export function drawRun(run) {
  return h("div", { class: "view run" },
    h("p", { class: "lead" }, run.headline),
    h("div", { class: "pairs" },
      pair("Bytes received", run.bytes.predicted, run.bytes.measured, exactBytes, run.bytes.is_exact ? "exactly as predicted" : "not as predicted", run.bytes.is_exact),
      pair("Time", run.seconds.predicted, run.seconds.measured, seconds, run.machine ? `predicted with a processor for each cell, ${clip(run.machine, 40)}` : "the plan had no machine"),
      pair("Memory", run.peak.predicted, run.peak.measured, bytes, "predicted: arrays of a worker at most; measured: a whole process")),
    h("div", { class: "tables" }, table("By operator", run.by_operator), table("By worker", run.by_worker)),
    h("ul", { class: "remarks" }, run.remarks.map((text) => h("li", {}, text))));
}

function pair(name, predicted, measured, format, remark, isGood) {
  const most = Math.max(predicted || 0, measured || 0, 1e-30);
  const row = (label, number, kind) => h("div", { class: "pair-row" }, h("span", {}, label),
    svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { class: kind, width: number ? Math.max(0.6, (100 * number) / most) : 0, height: 8, rx: 1 })),
    h("b", {}, number === null || number === undefined ? "—" : format(number)));
  return h("section", { class: "pair" }, h("h3", {}, name), row("predicted", predicted, "predicted"), row("measured", measured, "measured"),
    h("p", { class: isGood === undefined ? "hint" : isGood ? "good" : "bad" }, isGood ? "✓ " : "", remark));
}

const COLUMNS = [["tasks", String], ["seconds", seconds], ["predicted", seconds], ["received", bytes], ["read", bytes], ["written", bytes]];

function table(name, rows) {
  const columns = COLUMNS.filter(([key]) => rows.some((row) => row[key]));
  return h("section", { class: "table-frame" }, h("h3", {}, name), h("table", {},
    h("thead", {}, h("tr", {}, h("th", {}, ""), columns.map(([key]) => h("th", { class: "number" }, key)))),
    h("tbody", {}, rows.slice(0, 40).map((row) => h("tr", {}, h("th", {}, clip(row.name, 40)), columns.map(([key, format]) => h("td", { class: "number" }, row[key] ? format(row[key]) : "")))))),
    rows.length > 40 && h("p", { class: "hint" }, `and ${rows.length - 40} more`));
}
