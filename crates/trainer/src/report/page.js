"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const { summary, records, placement, config, commands } = data;
const at = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/* Numbers as people read them. */
/* As the rest of the program prints sizes: in the largest binary unit that fits, two decimals at
   most, and up to a machine of 1 TiB in GiB. */
function bytes(count) {
  const units = [["TiB", 2 ** 40, 2], ["GiB", 2 ** 30, 1], ["MiB", 2 ** 20, 1], ["KiB", 2 ** 10, 1]];
  const unit = units.find(([, size, least]) => count >= size * least);
  if (!unit) return `${count} bytes`;
  // A half goes to the even neighbour, as in Rust.
  const hundredths = (count / unit[1]) * 100;
  const below = Math.floor(hundredths);
  const up = hundredths - below === 0.5 ? below % 2 === 1 : hundredths - below > 0.5;
  return `${(below + (up ? 1 : 0)) / 100} ${unit[0]}`;
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
  if (size >= 0.001) return String(Number(value.toPrecision(4)));
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

/* Round steps for an axis: 1, 2 or 5 times a power of ten; of sizes in bytes, a power of two. */
function ticks(low, high, count, binary = false) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = binary ? Math.max(2 ** Math.ceil(Math.log2(rough)), 1)
    : [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough);
  const list = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-6; t += step) list.push(Math.abs(t) < step * 1e-6 ? 0 : t);
  return list;
}
/* What stands at the ticks of an axis: as many digits as tell them apart. */
function tickLabels(marks, format) {
  if (format !== short || marks.length < 2) return marks.map(format);
  const step = marks[1] - marks[0];
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const decimal = (m) => (Math.abs(m) >= 10000 ? whole.format(m) : m.toFixed(m === 0 ? 0 : digits));
  if (digits <= 4) return marks.map(decimal);
  return marks.map((m) => (m === 0 ? "0" : Number(m.toPrecision(6)).toExponential().replace("e-", "e−")));
}

/* Charts that show the same steps, one below the other: a pointer on one is on all of them. */
const aligned = [];
/* Steps in which caches fill and the learning rate rises: what peaks there would set the scale for all. */
const lastRecorded = records.reduce((last, r) => (r.kind === "train" ? Math.max(last, r.step) : last), 0);
const settled = Math.max(Math.min(data.warmup_steps, lastRecorded / 4), lastRecorded / 20);

/* Lowest and highest value to draw, and whether the beginning goes beyond. */
function range(curves, zero) {
  const of = (list) => [Math.min(...list), Math.max(...list)];
  const all = curves.flatMap((curve) => curve.points);
  const later = all.filter((p) => p[0] > settled).map((p) => p[1]);
  let [low, high] = of(all.map((p) => p[1]));
  const top = high;
  if (later.length >= 8) {
    const [floor, ceiling] = of(later);
    const room = Math.max((ceiling - (zero ? Math.min(floor, 0) : floor)) * 0.25, Math.abs(ceiling) * 0.02);
    high = Math.min(high, ceiling + room);
  }
  if (zero) low = Math.min(low, 0);
  const cut = top > high;
  const margin = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
  return { low: zero ? low : low - margin, high: high + margin, beyond: cut ? top : null };
}

/* A card with curves over the steps or over another axis, redrawn when its width changes; `mark` is a place on that. */
function chart({ title, unit, curves, format = short, zero = false, wide = false, axis = null, mark = null }) {
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
  const tip = make("div", { class: "tip" });
  tip.hidden = true;
  const plot = make("div", { class: "plot" }, svg, tip);
  const card = make("div", { class: wide ? "chart whole" : "chart" },
    make("h2", {}, title, make("small", {}, unit)), legend, plot);
  at("charts").append(card);

  const { low, high, beyond } = range(curves, zero);
  if (beyond !== null) {
    card.append(make("p", { class: "note" }, `The first steps go beyond the scale, up to ${format(beyond)}.`));
  }
  const [lastStep, firstStep] = axis ? [axis.to, axis.from]
    : [Math.max(lastRecorded, ...curves.flatMap((c) => c.points.map((p) => p[0])), 1), 0];

  let scale = null;
  const nearest = (curve, step) => curve.points.reduce((a, b) => (Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a));
  function show(step) {
    curves.forEach((curve, index) => {
      values[index].textContent = format((step === null ? curve.points.at(-1) : nearest(curve, step))[1]);
    });
    const cursor = svg.querySelector(".cursor");
    svg.querySelectorAll(".mark").forEach((mark) => mark.remove());
    tip.hidden = step === null;
    cursor.setAttribute("visibility", step === null ? "hidden" : "visible");
    if (step === null) return;
    const { x, y, width } = scale;
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(step));
    const rows = curves.map((curve) => {
      const near = nearest(curve, step);
      if (near[1] <= high) svg.append(make("circle", { class: "mark", cx: x(near[0]), cy: y(near[1]), r: 3.5, fill: `var(--${curve.colour})` }));
      const name = make("span", {}, make("i", { style: `background: var(--${curve.colour})` }), curve.name);
      return make("div", {}, name, make("b", {}, format(near[1])));
    });
    tip.replaceChildren(make("div", {}, axis ? axis.tell(step) : `step ${whole.format(step)}`), ...rows);
    const beside = x(step) < width / 2;
    tip.style.left = beside ? `${x(step) + 12}px` : "auto";
    tip.style.right = beside ? "auto" : `${width - x(step) + 12}px`;
  }
  function draw() {
    const width = Math.max(svg.clientWidth, 200);
    const height = Math.min(wide ? 320 : 230, Math.max(190, width * 0.55));
    const marks = ticks(low, high, 4, format === bytes);
    const labels = tickLabels(marks, format);
    /* Wide charts have one margin, so that their steps are in line. */
    const left = wide ? 84 : 32 + 7 * Math.max(...labels.map((label) => label.length));
    const [right, top, bottom] = [12, 8, 42];
    const x = (step) => left + ((step - firstStep) / (lastStep - firstStep)) * (width - left - right);
    const y = (value) => top + ((high - value) / (high - low)) * (height - top - bottom);
    scale = { x, y, left, right, width };
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    svg.replaceChildren();
    for (const [index, mark] of marks.entries()) {
      svg.append(make("line", { class: "grid", x1: left, x2: width - right, y1: y(mark), y2: y(mark) }));
      svg.append(make("text", { x: left - 8, y: y(mark) + 4, "text-anchor": "end", class: "tick" }, labels[index]));
    }
    for (const tick of ticks(firstStep, lastStep, axis ? lastStep - firstStep : width < 420 ? 3 : 6)) {
      const label = axis ? axis.label(tick) : whole.format(tick);
      if (Number.isInteger(tick)) svg.append(make("text", { x: x(tick), y: height - 24, "text-anchor": "middle" }, label));
    }
    const middle = (top + height - bottom) / 2;
    svg.append(make("text", { class: "axis", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, axis ? axis.name : "step"));
    svg.append(make("text", { class: "axis", transform: `translate(12 ${middle}) rotate(-90)`, "text-anchor": "middle" }, unit));
    /* A picture in the picture cuts off what is beyond the scale. */
    const [w, h] = [width - left, height - bottom + 4];
    const lines = make("svg", { x: left, y: 0, width: w, height: h, viewBox: `${left} 0 ${w} ${h}`, preserveAspectRatio: "xMinYMin", style: `width: ${w}px; overflow: hidden` });
    for (const curve of curves) {
      const line = curve.points.map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("");
      lines.append(make("path", { d: line, fill: "none", stroke: `var(--${curve.colour})`, "stroke-width": 2, "stroke-linejoin": "round" }));
      if (curve.dots || curve.points.length === 1) {
        for (const p of curve.points) lines.append(make("circle", { cx: x(p[0]), cy: y(p[1]), r: 3, fill: `var(--${curve.colour})` }));
      }
    }
    svg.append(lines);
    if (mark) {
      const [line, label] = [{ class: "marked", x1: x(mark.at), x2: x(mark.at), y1: top, y2: height - bottom }, { x: x(mark.at) + 6, y: top + 10 }];
      svg.append(make("line", line), make("text", label, mark.label));
    }
    svg.append(make("line", { class: "cursor", x1: 0, x2: 0, y1: top, y2: height - bottom, visibility: "hidden" }));
  }
  const all = wide ? aligned : [];
  all.push(show);
  svg.addEventListener("pointermove", (event) => {
    const { left, right, width } = scale;
    const share = (event.clientX - svg.getBoundingClientRect().left - left) / (width - left - right);
    const step = Math.min(Math.max(share, 0), 1) * (lastStep - firstStep) + firstStep;
    for (const one of all) one(axis ? step : Math.round(step));
  });
  svg.addEventListener("pointerleave", () => { for (const one of all) one(null); });
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
  const of = `${whole.format(summary.steps)} of ${whole.format(summary.max_steps)} steps`;
  const written = new Date(data.written * 1000).toLocaleString();
  const ending = {
    completed: `${whole.format(summary.steps)} steps, completed`,
    stopped: `Stopped after ${of}`,
    failed: `Ended by an error after ${of}`,
    running: `After ${of}, on ${written}. If the run is over, something ended it after that`,
  }[summary.ending];
  at("what").textContent = `${summary.environment.model}. ${ending}.`;
  if (data.error) {
    at("ended").hidden = false;
    at("ended").append(make("span", { class: "bad" }, data.error));
  }
  const held = points("eval", (r) => r.eval_loss);
  const figures = [];
  if (held.length > 1) figures.push([`${short(held[0][1])} → ${short(held.at(-1)[1])}`, "loss on held-out data, first to last"]);
  else if (held.length === 1) figures.push([short(held[0][1]), "loss on held-out data"]);
  if (summary.first_loss !== null) figures.push([`${short(summary.first_loss)} → ${short(summary.last_loss)}`, "training loss"]);
  figures.push([whole.format(summary.tokens_per_second), "tokens/s in training"]);
  figures.push([whole.format(summary.tokens), "tokens trained on"]);
  const memory = summary.memory;
  figures.push(memory.peak_live_bytes === null ? [bytes(memory.peak_resident_bytes), "peak memory of the process"]
    : [bytes(memory.peak_live_bytes), "peak memory in tensors"]);
  figures.push([duration(summary.wall_seconds), "in all"]);
  if (summary.best) figures.push([short(summary.best.value), `best evaluation, step ${whole.format(summary.best.step)}`]);
  for (const [value, label] of figures) at("figures").append(make("div", { class: "figure" }, make("b", {}, value), make("span", {}, label)));
}

function curves() {
  const loss = points("train", (r) => r.loss);
  const mean = smooth(loss);
  /* Models that learn in turn, whose losses are on scales of their own. */
  const turns = [...new Set(records.flatMap((r) => Object.keys(r.turns ?? {})))].sort();
  for (const [index, turn] of turns.entries()) {
    const colour = index % 2 ? "two" : "one";
    const name = turn.replaceAll("_", " ");
    const own = points("train", (r) => r.turns?.[turn]?.loss);
    const smoothed = smooth(own);
    chart({ title: `Loss, ${name}`, unit: data.loss_unit, wide: true, curves: [
      { name: "training", colour: smoothed.length ? `${colour}-pale` : colour, points: own },
      { name: "training, smoothed", colour, points: smoothed },
      { name: "held-out data", colour: index % 2 ? "one" : "two", points: points("eval", (r) => r.turns?.[turn]), dots: true },
    ] });
  }
  if (turns.length === 0) chart({ title: "Loss", unit: data.loss_unit, wide: true, curves: [
    { name: "training", colour: mean.length ? "one-pale" : "one", points: loss },
    { name: "training, smoothed", colour: "one", points: mean },
    { name: "held-out data", colour: "two", points: points("eval", (r) => r.eval_loss), dots: true },
  ] });
  const sizes = (pick) => points("train", (r) => pick(r.memory));
  chart({ title: "Memory", unit: "bytes", wide: true, zero: true, format: bytes, curves: [
    { name: "held by the allocator, peak", colour: "two", points: sizes((m) => m.held_peak) },
    { name: "in tensors, peak", colour: "one", points: sizes((m) => m.live_peak) },
    { name: "held by the allocator after the step", colour: "two-pale", points: sizes((m) => m.held) },
    { name: "in tensors after the step", colour: "one-pale", points: sizes((m) => m.live) },
    { name: "all of the process, in main memory", colour: "quiet-line", points: sizes((m) => m.resident) },
  ] });
  chart({ title: "Throughput", unit: "tokens/s", zero: true, curves: [
    { name: "training", colour: "one", points: points("train", (r) => r.tokens_per_second) }] });
  chart({ title: "Learning rate", unit: "per step", zero: true, curves: [
    { name: "schedule", colour: "one", points: points("train", (r) => r.learning_rate) }] });
  const norms = turns.map((turn, index) => ({ name: turn.replaceAll("_", " "), colour: index % 2 ? "two" : "one",
    points: points("train", (r) => r.turns?.[turn]?.grad_norm) }));
  chart({ title: "Gradient norm", unit: "norm before clipping", zero: true, curves: norms.length ? norms : [
    { name: "norm", colour: "one", points: points("train", (r) => r.grad_norm) }] });
}

/* What a search for a learning rate saw. */
function search() {
  const found = summary.learning_rate;
  if (!found) return;
  const told = found.learning_rate === null ? "No learning rate can be told" : `A learning rate of ${short(found.learning_rate)} is suggested`;
  at("what").append(` ${told}: ${found.reason}.`);
  const points = records.filter((r) => r.kind === "train" && Number.isFinite(r.loss)).map((r) => [Math.log10(r.learning_rate), r.loss]);
  if (points.length < 2) return;
  const rate = (power) => `rate ${(10 ** power).toExponential(1)}`;
  chart({ title: "Loss over the learning rate", unit: data.loss_unit, wide: true,
    axis: { name: "learning rate", from: Math.floor(points[0][0]), to: Math.ceil(points.at(-1)[0]), label: (power) => (power === 0 ? "1" : `1e${power}`), tell: rate },
    mark: found.learning_rate === null ? null : { at: Math.log10(found.learning_rate), label: short(found.learning_rate) },
    curves: [
      { name: "one step each", colour: "one-pale", points },
      { name: "smoothed", colour: "one", points: smooth(points) },
    ] });
}

/* The commands that fit this run. */
function use() {
  if (commands.length === 0) return;
  at("use").hidden = false;
  const named = commands.some((c) => c.what !== "go on with the run") ? "Use the result" : "Go on";
  at("use").querySelector("h2").textContent = named;
  for (const { what, line } of commands) {
    at("use").querySelector("div").append(make("div", { class: "command" }, make("p", {}, what), make("pre", {}, line)));
  }
}

/* What a resume changed. */
function changes() {
  const rows = records.filter((r) => r.kind === "resumed").flatMap((r) => r.changes.map((c) =>
    [whole.format(r.step + 1), c.key, JSON.stringify(c.before), JSON.stringify(c.now)]));
  if (rows.length === 0) return;
  at("changes").hidden = false;
  at("changes").querySelector("div").append(table(["from step", "key", "before", "from then on"], rows));
}

/* What was tried again, and learned the same. */
function again(r) {
  if (r.kind === "restarted") {
    return [String(r.step + 1), "all that came after the checkpoint", `a page fault on the GPU ended the run (restart ${r.restart})`];
  }
  if (r.kind === "out_of_memory") {
    const done = r.micro_batch !== null ? `with ${r.micro_batch} samples at a time`
      : r.offloaded !== null ? `with ${bytes(r.offloaded)} offloaded` : "with caches emptied";
    return [String(r.step), `the step, ${done}`, r.message];
  }
  const parts = [
    r.tensors > 0 && `${r.tensors} tensors`, r.mismatched > 0 && `${r.mismatched} damaged`,
    r.on_host > 0 && `${r.on_host} stayed on the host`, r.blocks > 0 && `${r.blocks} copies of streamed blocks`,
  ];
  return [String(r.step), parts.filter(Boolean).join(", "), r.first ?? ""];
}

function events() {
  const list = records.filter((r) => r.kind === "skipped" || r.kind === "rolled_back");
  const repeated = records.filter((r) => ["out_of_memory", "placement", "restarted"].includes(r.kind));
  if (list.length + repeated.length === 0) return;
  at("events").hidden = false;
  if (repeated.length > 0) {
    at("events").querySelector("div").append(table(["step", "repeated", "why"], repeated.map(again)));
  }
  if (list.length === 0) return;
  const rows = list.map((r) => r.kind === "skipped"
    ? [String(r.step), r.loss, r.grad_norm, r.batch, r.tensors.map((t) => t.name).join(", ") || "none by itself"]
    : [String(r.from_step), "", "", `back to step ${r.to_step}`, ""]);
  at("events").querySelector("div").append(table(["step", "loss", "gradient norm", "batch", "gradients not finite"], rows));
}

/* A file beside this page. */
function medium(file) {
  if (!file.endsWith(".mp4")) return make("img", { src: file, alt: "", loading: "lazy" });
  const video = make("video", { src: file, controls: "", loop: "", autoplay: "", playsinline: "" });
  video.muted = true;
  return video;
}

function samples() {
  const list = records.filter((r) => r.kind === "samples");
  if (list.length === 0) return;
  at("samples").hidden = false;
  const shown = (record, index) => make("div", {},
    make("p", {}, record.step === 0 ? "before training" : `after step ${whole.format(record.step)}`),
    ...(record.samples[index].files ?? []).map(medium),
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
  const troubled = placement.traces.length + placement.traces_left_out;
  const outcome = troubled === 0
    ? (routes.length ? "Every tensor arrived by the first route open to it." : "Nothing had to move: all of it was trained where it was loaded.")
    : `${whole.format(troubled)} tensors did not arrive by the first route open to them.`;
  section.querySelector("p").textContent = `Verification: ${text(placement.verify)}. ${outcome}${streamed()}`;
  const rows = routes.map((r) => [text(r.strategy), whole.format(r.tensors), bytes(r.bytes), whole.format(r.verified)]);
  if (rows.length) section.querySelector("div").append(table(["route", "tensors", "size", "verified"], rows, [1, 2, 3]));
  if (placement.traces.length) {
    const traces = placement.traces.map((s) => [s.tensor, bytes(s.bytes),
      s.attempts.map((a) => `${text(a.strategy)}: ${a.outcome}`).join(" → ")]);
    section.querySelector("div").append(table(["tensor", "size", "tried"], traces, [1]));
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
  if (e.batch) rows.push(["batch", e.batch]);
  if (m.peak_held_bytes !== null) rows.push(["held by the allocator at its peak", `${bytes(m.peak_held_bytes)}, ${whole.format(m.driver_allocations)} driver allocations`]);
  at("environment").querySelector("div").append(table(null, rows));
  for (const row of at("environment").querySelectorAll("tr")) row.firstChild.replaceWith(make("th", {}, row.firstChild.textContent));
  at("config").textContent = config;
}

header();
use();
search();
curves();
events();
changes();
samples();
placed();
environment();
