"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const { summary, records, placement, config } = data;
const at = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/* Numbers as people read them. */
function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 999.5 && unit < 4) { count /= 1000; unit += 1; }
  return `${unit === 0 ? whole.format(count) : count.toPrecision(3)} ${units[unit]}`;
}
function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
function short(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 10000) return whole.format(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 0.001) return String(Number(value.toPrecision(3)));
  return value.toExponential(1).replace("e-", "e−");
}

/* An element with text or children; text is never read as HTML. */
function make(name, attributes = {}, ...children) {
  const element = name === "svg" || svgNames.has(name)
    ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
const svgNames = new Set(["path", "line", "circle", "text", "rect", "g"]);

function table(head, rows, numbers = []) {
  const cells = (name, row) => row.map((cell, index) =>
    make(name, numbers.includes(index) ? { class: "number" } : {}, cell));
  const parts = rows.map((row) => make("tr", {}, ...cells("td", row)));
  if (head) parts.unshift(make("tr", {}, ...cells("th", head)));
  return make("table", {}, ...parts);
}

/* Round steps for an axis: 1, 2 or 5 times a power of ten. */
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough);
  const list = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-6; t += step) list.push(Math.abs(t) < step * 1e-6 ? 0 : t);
  return list;
}

/* A card with curves over the steps, redrawn when its width changes. */
function chart({ title, unit, curves, format = short, zero = false, wide = false }) {
  curves = curves.filter((curve) => curve.points.length > 0);
  if (curves.length === 0) return;
  const legend = make("ul", { class: "legend" });
  const values = curves.map((curve) => {
    const value = make("b", {});
    const key = make("i", { style: `background: var(--${curve.colour})` });
    legend.append(make("li", {}, key, `${curve.name} `, value));
    return value;
  });
  const label = `${title}: ${curves.map((c) => `${c.name}, last ${format(c.points.at(-1)[1])}`).join("; ")}`;
  const svg = make("svg", { role: "img", "aria-label": label });
  const card = make("div", { class: wide ? "chart whole" : "chart" },
    make("h2", {}, title, make("small", {}, unit)), legend, svg);
  at("charts").append(card);

  const all = curves.flatMap((curve) => curve.points);
  const [lastStep, firstStep] = [Math.max(...all.map((p) => p[0]), 1), 0];
  let [low, high] = [Math.min(...all.map((p) => p[1])), Math.max(...all.map((p) => p[1]))];
  if (zero) low = Math.min(low, 0);
  const margin = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
  high += margin;
  if (!zero) low -= margin;

  let scale = null;
  function show(step) {
    curves.forEach((curve, index) => {
      const near = step === null ? curve.points.at(-1)
        : curve.points.reduce((a, b) => (Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a));
      values[index].textContent = format(near[1]);
    });
  }
  function draw() {
    const width = Math.max(svg.clientWidth, 200);
    const height = Math.min(wide ? 320 : 230, Math.max(180, width * 0.55));
    const marks = ticks(low, high, 4);
    const left = 14 + 7 * Math.max(...marks.map((m) => format(m).length));
    const [right, top, bottom] = [10, 8, 26];
    const x = (step) => left + ((step - firstStep) / (lastStep - firstStep)) * (width - left - right);
    const y = (value) => top + ((high - value) / (high - low)) * (height - top - bottom);
    scale = { x, left, right, width, height, bottom, top };
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    svg.replaceChildren();
    for (const mark of marks) {
      svg.append(make("line", { class: "grid", x1: left, x2: width - right, y1: y(mark), y2: y(mark) }));
      svg.append(make("text", { x: left - 8, y: y(mark) + 4, "text-anchor": "end" }, format(mark)));
    }
    for (const mark of ticks(firstStep, lastStep, width < 420 ? 3 : 6)) {
      svg.append(make("text", { x: x(mark), y: height - 6, "text-anchor": "middle" }, whole.format(mark)));
    }
    for (const curve of curves) {
      const line = curve.points.map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("");
      svg.append(make("path", { d: line, fill: "none", stroke: `var(--${curve.colour})`, "stroke-width": 2, "stroke-linejoin": "round" }));
      if (curve.dots || curve.points.length === 1) {
        for (const p of curve.points) svg.append(make("circle", { cx: x(p[0]), cy: y(p[1]), r: 3, fill: `var(--${curve.colour})` }));
      }
    }
    svg.append(make("line", { class: "cursor", x1: 0, x2: 0, y1: top, y2: height - bottom, visibility: "hidden" }));
  }
  svg.addEventListener("pointermove", (event) => {
    const { left, right, width } = scale;
    const share = (event.clientX - svg.getBoundingClientRect().left - left) / (width - left - right);
    const step = Math.round(Math.min(Math.max(share, 0), 1) * (lastStep - firstStep) + firstStep);
    const cursor = svg.querySelector(".cursor");
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, scale.x(step));
    cursor.setAttribute("visibility", "visible");
    show(step);
  });
  svg.addEventListener("pointerleave", () => {
    svg.querySelector(".cursor").setAttribute("visibility", "hidden");
    show(null);
  });
  let drawn = 0;
  new ResizeObserver(() => {
    if (svg.clientWidth !== drawn) { drawn = svg.clientWidth; draw(); }
  }).observe(card);
  draw();
  show(null);
}

function points(kind, value) {
  return records.filter((r) => r.kind === kind).map((r) => [r.step, value(r)])
    .filter((p) => typeof p[1] === "number" && Number.isFinite(p[1]));
}

/* The training loss is noisy: beside it the mean over the records around each, once there are enough. */
function smooth(list) {
  const reach = Math.floor(list.length / 16);
  return reach < 1 ? [] : list.map(([step], index) => {
    // As far on both sides, so that the mean does not lag.
    const near = Math.min(reach, index, list.length - 1 - index);
    const around = list.slice(index - near, index + near + 1);
    return [step, around.reduce((sum, p) => sum + p[1], 0) / around.length];
  });
}

function header() {
  document.title = `${summary.name}: training run`;
  at("name").textContent = summary.name;
  const ending = summary.ending === "completed" ? `${whole.format(summary.steps)} steps, completed`
    : `${summary.ending} after ${whole.format(summary.steps)} of ${whole.format(summary.max_steps)} steps`;
  at("what").textContent = `${summary.environment.model}. ${ending}.`;
  const held = points("eval", (r) => r.eval_loss);
  const figures = [];
  if (held.length > 1) figures.push([`${short(held[0][1])} → ${short(held.at(-1)[1])}`, "held-out loss, first to last"]);
  else if (held.length === 1) figures.push([short(held[0][1]), "held-out loss"]);
  if (summary.first_loss !== null) figures.push([`${short(summary.first_loss)} → ${short(summary.last_loss)}`, "training loss"]);
  figures.push([whole.format(summary.tokens_per_second), "tokens/s in training"]);
  figures.push([whole.format(summary.tokens), "tokens trained on"]);
  const memory = summary.memory;
  figures.push(memory.peak_live_bytes === null ? [bytes(memory.peak_resident_bytes), "peak memory of the process"]
    : [bytes(memory.peak_live_bytes), "peak memory live in tensors"]);
  figures.push([duration(summary.wall_seconds), "in all"]);
  if (summary.best) figures.push([short(summary.best.value), `best evaluation, step ${whole.format(summary.best.step)}`]);
  for (const [value, label] of figures) at("figures").append(make("div", { class: "figure" }, make("b", {}, value), make("span", {}, label)));
}

function curves() {
  const loss = points("train", (r) => r.loss);
  const mean = smooth(loss);
  chart({ title: "Loss", unit: "nats per token", wide: true, curves: [
    { name: "training", colour: mean.length ? "one-pale" : "one", points: loss },
    { name: "training, smoothed", colour: "one", points: mean },
    { name: "held out", colour: "two", points: points("eval", (r) => r.eval_loss), dots: true },
  ] });
  const megabytes = (pick) => points("train", (r) => pick(r.memory));
  chart({ title: "Memory", unit: "at each record", wide: true, zero: true, format: bytes, curves: [
    { name: "held, peak", colour: "two", points: megabytes((m) => m.held_peak) },
    { name: "live, peak", colour: "one", points: megabytes((m) => m.live_peak) },
    { name: "held after the step", colour: "two-pale", points: megabytes((m) => m.held) },
    { name: "live after the step", colour: "one-pale", points: megabytes((m) => m.live) },
    { name: "process", colour: "quiet", points: megabytes((m) => m.resident) },
  ] });
  chart({ title: "Throughput", unit: "tokens/s", zero: true, curves: [
    { name: "training", colour: "one", points: points("train", (r) => r.tokens_per_second) }] });
  chart({ title: "Learning rate", unit: "", zero: true, curves: [
    { name: "schedule", colour: "one", points: points("train", (r) => r.learning_rate) }] });
  chart({ title: "Gradient norm", unit: "before clipping", zero: true, curves: [
    { name: "norm", colour: "one", points: points("train", (r) => r.grad_norm) }] });
}

function events() {
  const list = records.filter((r) => r.kind === "skipped" || r.kind === "rolled_back");
  if (list.length === 0) return;
  at("events").hidden = false;
  const rows = list.map((r) => r.kind === "skipped"
    ? [String(r.step), r.loss, r.grad_norm, r.batch, r.tensors.map((t) => t.name).join(", ") || "none by itself"]
    : [String(r.from_step), "", "", `back to step ${r.to_step}`, ""]);
  at("events").querySelector("div").append(table(["step", "loss", "gradient norm", "batch", "gradients not finite"], rows));
}

function samples() {
  const list = records.filter((r) => r.kind === "samples");
  if (list.length === 0) return;
  at("samples").hidden = false;
  const shown = (record, index) => make("div", {},
    make("p", {}, record.step === 0 ? "before training" : `after step ${whole.format(record.step)}`),
    make("pre", {}, record.samples[index].text.trim() || "(nothing)"));
  const last = list.at(-1);
  last.samples.forEach((sample, index) => {
    const rows = list.filter((r) => r.samples[index]?.prompt === sample.prompt);
    const ends = rows.length > 1 ? [rows[0], last] : [last];
    const pair = make("div", { class: rows.length > 1 ? "pair" : "pair single" }, ...ends.map((r) => shown(r, index)));
    const card = make("div", { class: "sample" }, make("h3", {}, JSON.stringify(sample.prompt)), pair);
    if (rows.length > 2) {
      const between = rows.slice(1, -1).map((r) => shown(r, index));
      card.append(make("details", {}, make("summary", {}, `${between.length} in between`), make("div", { class: "pair" }, ...between)));
    }
    at("samples").querySelector("div").append(card);
  });
}

function placed() {
  const section = at("placement");
  const routes = placement.routes.filter((r) => r.tensors > 0);
  const troubled = placement.stories.length + placement.stories_left_out;
  const story = troubled === 0
    ? (routes.length ? "Every tensor arrived by the first route open to it." : "Nothing had to move: all of it was trained where it was loaded.")
    : `${whole.format(troubled)} tensors did not arrive by the first route open to them.`;
  section.querySelector("p").textContent = `Verification: ${text(placement.verify)}. ${story}${streamed()}`;
  const rows = routes.map((r) => [text(r.rung), whole.format(r.tensors), bytes(r.bytes), whole.format(r.verified)]);
  if (rows.length) section.querySelector("div").append(table(["route", "tensors", "size", "verified"], rows, [1, 2, 3]));
  if (placement.stories.length) {
    const stories = placement.stories.map((s) => [s.tensor, bytes(s.bytes),
      s.attempts.map((a) => `${text(a.rung)}: ${a.outcome}`).join(" → ")]);
    section.querySelector("div").append(table(["tensor", "size", "tried"], stories, [1]));
  }
}
/* What was streamed, as a sentence. */
function streamed() {
  const { memory_plan: plan, streamed: report } = summary;
  if (!plan) return "";
  if (!plan.streamed.length || !report) return ` All ${plan.blocks} blocks of the model stayed in memory.`;
  const from = plan.folder === null ? "host memory" : "a file";
  return ` ${plan.streamed.length} of ${plan.blocks} blocks were streamed from ${from} through a ring of ${bytes(report.ring_bytes)}: `
    + `${whole.format(report.copies)} times, of which ${whole.format(report.waited)} were waited for.`;
}
const text = (value) => (typeof value === "string" ? value.replaceAll("_", " ") : JSON.stringify(value));

function environment() {
  const e = summary.environment;
  const m = summary.memory;
  const rows = [["surefoot", e.surefoot], ["libtorch", e.libtorch], ["device", e.device],
    ["allocator", e.allocator], ["system", `${e.system}, ${e.cores} cores`], ["data", e.data], ["model", e.model],
    ["peak of the process", bytes(m.peak_resident_bytes)]];
  if (m.peak_held_bytes !== null) rows.push(["peak held", `${bytes(m.peak_held_bytes)}, ${whole.format(m.driver_allocations)} driver allocations`]);
  at("environment").querySelector("div").append(table(null, rows));
  for (const row of at("environment").querySelectorAll("tr")) row.firstChild.replaceWith(make("th", {}, row.firstChild.textContent));
  at("config").textContent = config;
}

header();
curves();
events();
samples();
placed();
environment();
