// What the page costs, for `cargo xtask bench ui`: memory and CPU of the server, first paint, a long run, and how much
// slower a training is with five tabs open on it in a browser elsewhere, whose drawing takes nothing from it. Prints one
// JSON object.
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { cpus, loadavg } from "node:os";
import { join } from "node:path";
import { Place, program, trainLine, writeRun } from "./place.mjs";
import { png } from "./shared.mjs";

/** @typedef {{ name: string, pid: number, tid: number, dur: number }} Traced */

const PAIRS = Number(process.env.PAIRS ?? 10);
const STEPS = Number(process.env.STEPS ?? 1500);
const IDLE = 30_000;
/** Ticks of proc(5) in a second. */
const TICKS = 100;

const sleep = (/** @type {number} */ ms) => new Promise((done) => setTimeout(done, ms));
const sorted = (/** @type {number[]} */ values) => [...values].sort((a, b) => a - b);
const quantile = (/** @type {number[]} */ values, /** @type {number} */ q) => sorted(values)[Math.round((values.length - 1) * q)];
const told = (/** @type {string} */ text) => process.stderr.write(`${text}\n`);

function usage(/** @type {number} */ pid) {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return { seconds: (Number(stat[11]) + Number(stat[12])) / TICKS, resident: Number(/VmRSS:\s+(\d+)/.exec(status)[1]) * 1024 };
}

/** Share of a core, in percent, and memory, while nothing happens. */
async function idle(/** @type {Place} */ place) {
  const before = usage(place.server.pid);
  await sleep(IDLE);
  const after = usage(place.server.pid);
  return { cpu_percent: ((after.seconds - before.seconds) / (IDLE / 1000)) * 100, resident_bytes: after.resident };
}

/** A page that waits as long as a busy machine takes, which is then told as it is. */
async function opened(/** @type {Place} */ place) {
  const page = await place.page();
  page.setDefaultTimeout(600_000);
  return page;
}

/** Milliseconds from the navigation to the first content, of a server and a browser without anything in their caches. */
async function firstPaint(/** @type {Place} */ place) {
  await place.stop();
  await place.start();
  const context = await place.browser.newContext();
  const page = await context.newPage();
  await page.goto(place.url);
  await page.waitForSelector("table");
  const found = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime);
  await context.close();
  return found;
}

/** A run of 100,000 points: how long it takes to be seen from the list, and what keeps the page's thread without a pause
 * meanwhile and while its curves are smoothed anew: no frame comes sooner than the longest of these. */
async function longRun(/** @type {Place} */ place) {
  const lines = [];
  for (let step = 1; step <= 100_000; step += 1) lines.push(trainLine(step, 100_000, 1e-3, () => Math.random() - 0.5));
  place.append("run-0", `${lines.join("\n")}\n`);
  const page = await opened(place);
  await page.waitForSelector("table");
  await place.browser.startTracing(page, { categories: ["toplevel", "devtools.timeline", "__metadata"] });
  const began = performance.now();
  await page.evaluate(() => (location.hash = "#/run/run-0"));
  await page.waitForFunction(() => document.querySelector(".chart [role=img]")?.ariaLabel.includes("at step 100000"));
  const shown = performance.now() - began;
  await sleep(500);
  for (let turn = 1; turn <= 50; turn += 1) {
    await page.evaluate(
      async (/** @type {string} */ value) => {
        const slider = document.querySelector("input[type=range]");
        slider.value = value;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      },
      String(turn / 60),
    );
  }
  const { traceEvents } = JSON.parse(String(await place.browser.stopTracing()));
  await page.context().close();
  const drawing = traceEvents.filter((/** @type {Traced} */ event) => event.name === "FireAnimationFrame");
  const threads = new Set(drawing.map((/** @type {Traced} */ event) => `${event.pid} ${event.tid}`));
  const tasks = traceEvents.filter(
    (/** @type {Traced} */ event) => event.name.endsWith("RunTask") && event.dur !== undefined && threads.has(`${event.pid} ${event.tid}`),
  );
  const long = (/** @type {Traced[]} */ events) => sorted(events.map((/** @type {Traced} */ event) => event.dur / 1000));
  if (drawing.length < 50 || tasks.length < drawing.length)
    throw new Error(`${drawing.length} frames and ${tasks.length} tasks were traced`);
  const longest = long(tasks).slice(-5);
  return { shown_ms: shown, frame_ms_median: quantile(longest, 0.5), frame_ms_most: longest.at(-1), longest_tasks_ms: longest };
}

/** A folder of 10,000 pictures: how long it takes to be seen, and the longest times between two frames while it is scrolled. */
async function thumbnails(/** @type {Place} */ place) {
  const folder = join(place.folder, "pictures");
  mkdirSync(folder);
  for (let seed = 0; seed < 10_000; seed += 1) {
    const name = join(folder, String(seed).padStart(5, "0"));
    writeFileSync(
      `${name}.png`,
      png(64, 48, [seed % 255, 120, 90], (x, y) => ((x * (seed % 37)) ^ (y * (seed % 23))) % 255),
    );
    writeFileSync(`${name}.txt`, `a picture, number ${seed}\n`);
  }
  const page = await opened(place);
  await page.waitForSelector("table");
  const began = performance.now();
  await page.evaluate((/** @type {string} */ path) => (location.hash = `#/data?path=${encodeURIComponent(path)}`), folder);
  await page.waitForFunction(() => document.querySelector(".cell img")?.naturalWidth > 0);
  const shown = performance.now() - began;
  await sleep(1000);
  await place.browser.startTracing(page, { categories: ["toplevel", "devtools.timeline", "__metadata"] });
  const gaps = await page.evaluate(
    () =>
      new Promise((done) => {
        /** @type {number[]} */
        const gaps = [];
        let last = performance.now();
        const step = (/** @type {number} */ now) => {
          gaps.push(now - last);
          last = now;
          if (gaps.length === 400) return done(gaps);
          scrollBy(0, 90);
          requestAnimationFrame(step);
        };
        requestAnimationFrame(step);
      }),
  );
  const { traceEvents } = JSON.parse(String(await place.browser.stopTracing()));
  const drawing = traceEvents.filter((/** @type {Traced} */ event) => event.name === "FireAnimationFrame");
  const threads = new Set(drawing.map((/** @type {Traced} */ event) => `${event.pid} ${event.tid}`));
  const tasks = traceEvents.filter(
    (/** @type {Traced} */ event) => event.name.endsWith("RunTask") && event.dur !== undefined && threads.has(`${event.pid} ${event.tid}`),
  );
  const cells = await page.evaluate(() => document.querySelectorAll(".cell").length);
  await page.context().close();
  return {
    shown_ms: shown,
    cells,
    frame_ms_median: quantile(gaps, 0.5),
    frame_ms_99: quantile(gaps, 0.99),
    frame_ms_most: Math.max(...gaps),
    longest_tasks_ms: sorted(tasks.map((/** @type {Traced} */ event) => event.dur / 1000)).slice(-5),
  };
}

/** What 500 runs cost while three tabs show the list, each in a window of its own. */
async function threeTabs(/** @type {Place} */ place) {
  for (let run = 200; run < 500; run += 1) writeRun(place.runs, `run-${run}`, { done: 20, ending: "completed" });
  const pages = [await opened(place), await opened(place), await opened(place)];
  for (const page of pages) await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 500);
  const found = await idle(place);
  for (const page of pages) await page.context().close();
  return found;
}

/** Seconds until a thousand jobs are added to a queue that is paused, one after another. */
async function addJobs(/** @type {Place} */ place) {
  const page = await opened(place);
  await page.waitForSelector("table");
  const found = await page.evaluate(async () => {
    const post = (/** @type {string} */ path, /** @type {object} */ body) =>
      fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
    await post("/api/queue/pause", { paused: true });
    const began = performance.now();
    for (let number = 1; number <= 1000; number += 1) {
      const { status } = await post("/api/queue", { config: `name: x${number}` });
      if (status !== 201) throw new Error(`job ${number}: ${status}`);
    }
    return (performance.now() - began) / 1000;
  });
  await page.context().close();
  return found;
}

const CONFIG = `name: tiny
device: cpu
threads: 1
model: {hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 2}
data: {path: text.txt, block_size: 64}
sample: {max_new_tokens: 0}
train: {bf16: false, max_steps: ${STEPS}, per_device_train_batch_size: 4, logging_steps: 10, eval_steps: 0, save_steps: 0}
`;

/** Seconds of training, as the run itself counts them. */
async function train(/** @type {string} */ folder, /** @type {string} */ name) {
  const child = spawn(program, ["--json", "train", "config.yaml", "--set", `name=${name}`], {
    cwd: folder,
    env: { ...process.env, HIP_ALLOC: "0", SUREFOOT_CACHE: join(folder, "cache") },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let [said, errors] = ["", ""];
  child.stdout.on("data", (piece) => (said += piece));
  child.stderr.on("data", (piece) => (errors += piece));
  const code = await new Promise((done) => child.on("close", done));
  if (code !== 0) throw new Error(errors);
  const summary = JSON.parse(said);
  return summary.tokens / summary.tokens_per_second;
}

/** A tab in a browser on another machine, as this one sees it: its requests, and no drawing. */
async function remoteTab(/** @type {Place} */ place, /** @type {string} */ name, /** @type {AbortSignal} */ signal) {
  const token = new URLSearchParams(new URL(place.url).hash.slice(1)).get("token");
  const ask = (/** @type {string} */ path) =>
    fetch(`http://127.0.0.1:${place.port}/api/runs/${name}${path}`, { signal, headers: { authorization: `Bearer ${token}` } });
  try {
    while (!(await ask("")).ok) await sleep(500);
    const { inode, offset } = await (await ask("/curves")).json();
    const stream = await ask(`/stream?inode=${inode}&offset=${offset}`);
    for await (const _ of stream.body);
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

/** How much longer a training takes with five tabs open on it, in percent, for each pair. */
async function tabs(/** @type {Place} */ place) {
  writeFileSync(join(place.folder, "text.txt"), Array.from({ length: 4000 }, (_, n) => `${n} bottles of ale\n`).join(""));
  writeFileSync(join(place.folder, "config.yaml"), CONFIG);
  const slower = [];
  const served = [];
  for (let pair = 0; pair < PAIRS; pair += 1) {
    /** @type {Record<string, number>} */
    const seconds = {};
    // Which is first changes from pair to pair.
    for (const open of pair % 2 === 0 ? [false, true] : [true, false]) {
      const name = `pair-${pair}-${open ? "tabs" : "alone"}`;
      const closing = new AbortController();
      const clients = open ? Array.from({ length: 5 }, () => remoteTab(place, name, closing.signal)) : [];
      const before = usage(place.server.pid).seconds;
      seconds[String(open)] = await train(place.folder, name);
      if (open) served.push(((usage(place.server.pid).seconds - before) / seconds[String(open)]) * 100);
      closing.abort();
      await Promise.all(clients);
    }
    slower.push((seconds["true"] / seconds["false"] - 1) * 100);
    told(`pair ${pair + 1} of ${PAIRS}: ${slower.at(-1).toFixed(2)} %`);
  }
  return {
    pairs: slower,
    // The whole of what can be taken from a training on a machine whose cores are all at work.
    server_percent_of_a_core: quantile(served, 0.5),
    median_percent: quantile(slower, 0.5),
    quarter_percent: quantile(slower, 0.25),
    three_quarters_percent: quantile(slower, 0.75),
  };
}

const place = await Place.open();
try {
  for (let run = 0; run < 200; run += 1) writeRun(place.runs, `run-${run}`, { done: 20, ending: "completed" });
  told("idle");
  const alone = await idle(place);
  const page = await opened(place);
  await page.waitForSelector("table");
  const watched = await idle(place);
  await page.context().close();
  told("first paint");
  const paints = [];
  for (let turn = 0; turn < 9; turn += 1) paints.push(await firstPaint(place));
  told("100,000 points");
  const long = await longRun(place);
  told("10,000 pictures");
  const pictures = await thumbnails(place);
  told("500 runs, three tabs");
  const listed = await threeTabs(place);
  told("1,000 jobs");
  const added = await addJobs(place);
  const document = {
    load: loadavg(),
    cpu: cpus()[0].model,
    cores: cpus().length,
    runs_in_folder: 200,
    idle: alone,
    idle_with_the_list_open: watched,
    first_paint_ms: { median: quantile(paints, 0.5), most: Math.max(...paints) },
    points_100000: long,
    pictures_10000: pictures,
    runs_500_three_tabs: listed,
    jobs_1000_seconds: added,
    training_with_five_tabs: PAIRS > 0 ? await tabs(place) : null,
  };
  process.stdout.write(`${JSON.stringify(document, null, 2)}\n`);
} finally {
  await place.close();
}
