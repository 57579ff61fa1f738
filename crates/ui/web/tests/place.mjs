// A folder of runs, `surefoot ui` on it, and a browser: what the tests share.
import { spawn } from "node:child_process";
import { appendFileSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { chromium } from "playwright-core";

const root = new URL("../../../..", import.meta.url).pathname;
export const program = process.env.SUREFOOT ?? join(root, "target/debug/surefoot");
const browserPath = process.env.CHROMIUM ?? "/usr/bin/chromium";

/** @import { Browser, BrowserContextOptions, Page } from "playwright-core" */
/** @import { ChildProcessByStdio } from "node:child_process" */
/** @import { Readable } from "node:stream" */
/** @typedef {Page & { complaints: string[] }} TestPage */

/**
 * Numbers that are the same each time.
 * @param {number} seed
 */
function noise(seed) {
  let state = seed;
  return () => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return state / 2147483648 - 0.5;
  };
}

/**
 * @param {number} step
 * @param {number} steps
 * @param {number} rate
 * @param {() => number} random
 */
export function trainLine(step, steps, rate, random, counted = true) {
  const loss = 1.4 + 3.6 * Math.exp((-step * rate) / 0.24) + 0.12 * random();
  const use = 1e9 * (1.2 + 0.2 * Math.sin(step / 40));
  const memory = counted
    ? { live: use * 0.7, held: use * 0.8, live_peak: use * 1.2, held_peak: use * 1.26, resident: 2.1e9 }
    : { live: null, held: null, live_peak: null, held_peak: null, resident: 5.1e8 + step * 1e4 };
  return JSON.stringify({
    kind: "train",
    step,
    loss,
    learning_rate: rate * Math.min(1, step / 60) * (0.5 + 0.5 * Math.cos((Math.PI * step) / steps)),
    grad_norm: 0.8 + 0.4 * random(),
    tokens_per_second: 18800 + 500 * random(),
    memory,
  });
}

/**
 * A run folder as the trainer leaves it.
 * @param {string} runs
 * @param {string} name
 * @param {{ rate?: number, steps?: number, done?: number, ending?: string, error?: string, counted?: boolean, seed?: number, skip?: number }} options
 */
export function writeRun(runs, name, { rate = 2e-3, steps = 800, done = steps, ending, error = null, counted = true, seed = 1, skip }) {
  const folder = join(runs, name);
  mkdirSync(folder, { recursive: true });
  writeFileSync(
    join(folder, "config.yaml"),
    `name: ${JSON.stringify(name)}\ndevice: auto\nmodel:\n  hidden_size: 256\ndata:\n  dataset: shakespeare\ntrain:\n  max_steps: ${steps}\n  learning_rate: ${rate}\n  lr_scheduler_type: cosine\n`,
  );
  const random = noise(seed);
  const lines = [];
  for (let step = 10; step <= done; step += 10) {
    lines.push(trainLine(step, steps, rate, random, counted));
    if (step % 100 === 0) {
      const loss = 1.5 + 3.6 * Math.exp((-step * rate) / 0.24);
      lines.push(JSON.stringify({ kind: "eval", step, eval_loss: loss, eval_nats_per_byte: loss / 3, complete: false }));
    }
    if (step % 200 === 0) {
      const text = `\nHAMLET.\nWhat is the matter of <b>step ${step}</b>, my lord?\n<img src=x onerror="document.title='broken'">\u001b[31m &amp;\n`;
      lines.push(
        JSON.stringify({
          kind: "samples",
          step,
          samples: [
            { prompt: "HAMLET.\n", text },
            { prompt: "To be", text: ` or not, at ${step}` },
          ],
        }),
      );
    }
    if (step === skip) {
      lines.push(
        JSON.stringify({
          kind: "skipped",
          step,
          loss: "NaN",
          grad_norm: "inf",
          batch: "row 12",
          tensors: [{ name: "layers.3.mlp.down_proj.weight", nan: 12, infinite: 0, of: 180224 }],
          further_tensors: 2,
        }),
      );
    }
  }
  writeFileSync(join(folder, "metrics.jsonl"), lines.map((line) => `${line}\n`).join(""));
  if (ending) {
    const commands = [{ what: "go on with the run", line: `surefoot train --resume ${folder}` }];
    const model = { kind: "language", architecture: "llama", device: "auto" };
    const facts = { ending, error: error ?? null, ...model, expected_memory: { peak: 1.62e9 }, commands };
    writeFileSync(join(folder, "run.json"), JSON.stringify(facts));
  }
  return folder;
}

const DEVICE = {
  vendor: "0x1002",
  uevent: "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0",
  mem_info_vram_used: 9.5 * 2 ** 30,
  mem_info_vram_total: 16 * 2 ** 30,
  mem_info_gtt_used: 512 * 2 ** 20,
  mem_info_gtt_total: 31 * 2 ** 30,
  gpu_busy_percent: 97,
  "hwmon/hwmon3/freq1_label": "sclk",
  "hwmon/hwmon3/freq1_input": 2450e6,
  "hwmon/hwmon3/power1_average": 214e6,
  "hwmon/hwmon3/temp1_label": "edge",
  "hwmon/hwmon3/temp1_input": 61000,
};

/**
 * A GPU in a made-up sysfs, as the driver shows a card; `files` are other files of it, or `null` for none.
 * @param {string} system
 * @param {string} card
 * @param {Record<string, string | number>} files
 */
export function writeGpu(system, card, files = {}) {
  for (const [name, value] of Object.entries({ ...DEVICE, ...files })) {
    const path = join(system, "sys/class/drm", card, "device", name);
    mkdirSync(dirname(path), { recursive: true });
    if (value === null) rmSync(path, { force: true });
    else writeFileSync(path, `${value}\n`);
  }
}

export class Place {
  /** @type {string} */ folder;
  /** @type {string} */ runs;
  /** @type {Browser} */ browser;
  /** @type {ChildProcessByStdio<null, Readable, null>} */ server;
  /** @type {string} */ url;
  /** @type {number} */ port;

  static async open() {
    const place = new Place();
    place.folder = mkdtempSync(join(tmpdir(), "surefoot-ui-"));
    place.runs = join(place.folder, "runs");
    mkdirSync(place.runs);
    await place.start();
    place.browser = await chromium.launch({
      executablePath: browserPath,
      args: [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
      ],
    });
    return place;
  }

  /** Starts the server, at the port that it had before if it had one. */
  async start() {
    if (!existsSync(program)) throw new Error(`${program} is not built`);
    this.server = spawn(program, ["--json", "ui", "--runs", this.runs, "--port", String(this.port ?? 0)], {
      cwd: this.folder,
      env: {
        ...process.env,
        SUREFOOT_SYSTEM: join(this.folder, "system"),
        XDG_STATE_HOME: join(this.folder, "state"),
        SUREFOOT_CACHE: join(this.folder, "cache"),
        HIP_ALLOC: "0",
      },
      stdio: ["ignore", "pipe", "inherit"],
    });
    const said = await new Promise((resolve, reject) => {
      let text = "";
      this.server.stdout.on("data", (piece) => {
        text += piece;
        if (text.includes("\n")) resolve(JSON.parse(text));
      });
      this.server.on("exit", (code) => reject(new Error(`surefoot ui ended with ${code}`)));
    });
    this.server.removeAllListeners("exit");
    this.url = said.url;
    this.port = said.port;
  }

  /** Another server on the same folder, with a port of its own. */
  async second() {
    const other = new Place();
    Object.assign(other, { folder: this.folder, runs: this.runs, browser: this.browser });
    await other.start();
    return other;
  }

  /** @param {NodeJS.Signals} signal */
  async stop(signal = "SIGTERM") {
    const ended = new Promise((resolve) => this.server.once("exit", resolve));
    this.server.kill(signal);
    await ended;
  }

  /**
   * A page that is signed in; what its console complains of is kept in `page.complaints`.
   * @param {BrowserContextOptions} options
   * @returns {Promise<TestPage>}
   */
  async page(options = {}) {
    const context = await this.browser.newContext({ viewport: { width: 1360, height: 900 }, ...options });
    const page = /** @type {TestPage} */ (await context.newPage());
    page.complaints = [];
    page.on("pageerror", (error) => page.complaints.push(String(error)));
    page.on("console", (message) => {
      // On a busy machine a check of a config takes its time, and the page asks again.
      if (message.type() === "error" && !message.text().includes("429")) page.complaints.push(message.text());
    });
    await page.goto(this.url);
    return page;
  }

  /**
   * @param {string} name
   * @param {string} text
   */
  append(name, text) {
    appendFileSync(join(this.runs, name, "metrics.jsonl"), text);
  }

  async close() {
    await this.browser.close();
    await this.stop();
    // A trainer that was asked something may write a moment longer.
    rmSync(this.folder, { recursive: true, maxRetries: 20, retryDelay: 200 });
  }
}
