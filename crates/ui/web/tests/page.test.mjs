// The page in a real browser, on a real server.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Place, trainLine, writeGpu, writeRun } from "./place.mjs";
import { serious } from "./shared.mjs";

const pictures = process.env.SCREENSHOTS;
/** @import { Page } from "playwright-core" */

/** @type {Place} */
let place;

before(async () => {
  place = await Place.open();
  writeRun(place.runs, "small", { ending: "completed", skip: 310 });
  writeRun(place.runs, "small-2", { rate: 1e-3, ending: "completed", seed: 2 });
  writeRun(place.runs, "qwen3-lora", {
    rate: 5e-4,
    steps: 3000,
    done: 1240,
    ending: "failed",
    error:
      "HIP out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 15.98 GiB of which 1.20 GiB is free. <script>document.title='broken'</script>",
    seed: 3,
  });
  writeRun(place.runs, "night-3", { rate: 1e-3, steps: 2000, done: 900, ending: "stopped", counted: false, seed: 4 });
  writeRun(place.runs, "<b>bold & co", { done: 100, ending: "stopped", seed: 5 });
});

after(() => place?.close());

const at = (/** @type {Page} */ page, /** @type {string} */ hash) => page.goto(`http://127.0.0.1:${place.port}/${hash}`);

async function picture(/** @type {Page} */ page, /** @type {string} */ name) {
  if (!pictures) return;
  // The charts are drawn a frame after they are there.
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  await page.screenshot({ path: join(pictures, `ui-${name}.png`), fullPage: true });
}

test("the token leaves the address, and no script can read the cookie", async () => {
  const page = await place.page();
  await page.waitForSelector("table");
  assert.equal(new URL(page.url()).hash, "#/");
  assert.equal(await page.evaluate(() => document.cookie), "");
  const [cookie] = await page.context().cookies();
  assert.deepEqual([cookie.httpOnly, cookie.sameSite], [true, "Strict"]);
  await page.context().close();
});

test("without the token nothing is shown but how to get in", async () => {
  const page = await (await place.browser.newContext()).newPage();
  await at(page, "");
  await page.waitForSelector("text=Not signed in");
  assert.equal(await page.locator("table").count(), 0);
  await page.context().close();
});

test("names, samples and errors with markup are shown as text", async () => {
  const page = await place.page();
  await page.getByRole("link", { name: "<b>bold & co" }).click();
  await page.waitForSelector("h1:has-text('<b>bold & co')");
  await at(page, "#/run/small");
  await page.waitForSelector("text=<img src=x onerror=");
  await at(page, "#/run/qwen3-lora");
  await page.waitForSelector("text=<script>document.title=");
  assert.equal(await page.title(), "qwen3-lora – Surefoot");
  assert.equal(await page.locator("main img").count(), 0);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("the error of a broken run is explained with what helps", async () => {
  const page = await place.page();
  await at(page, "#/run/qwen3-lora");
  await page.waitForSelector("h2:has-text('Cause of the failure')");
  assert.ok((await page.locator(".finding a").first().getAttribute("href")).startsWith("https://"));
  await page.context().close();
});

test("what is logged appears, and goes on to after the server was killed", async () => {
  writeRun(place.runs, "live", { done: 20, ending: "running" });
  const page = await place.page();
  await at(page, "#/run/live");
  const loss = page.locator(".chart [role=img]").first();
  await page.waitForFunction(() => document.querySelector(".chart [role=img]")?.ariaLabel.includes("at step 20"));
  place.append("live", `${trainLine(30, 800, 2e-3, () => 0)}\n{"kind":"tra`);
  await page.waitForFunction(() => document.querySelector(".chart [role=img]")?.ariaLabel.includes("at step 30"));
  await place.stop("SIGKILL");
  await page.waitForSelector("text=No connection");
  place.append("live", `in","step":40}\n${trainLine(50, 800, 2e-3, () => 0)}\n`);
  await place.start();
  await page.waitForFunction(() => document.querySelector(".chart [role=img]")?.ariaLabel.includes("at step 50"));
  await page.waitForSelector("text=No connection", { state: "detached" });
  assert.match(await loss.getAttribute("aria-label"), /training: .* at step 10, .* at step 50/);
  rmSync(join(place.runs, "live"), { recursive: true });
  await page.waitForSelector("text=The folder of this run was removed");
  await page.context().close();
});

test("what was tried again is marked on the curves and told in words", async () => {
  writeRun(place.runs, "tried", { done: 200, skip: 30 });
  const lines = [
    { kind: "streaming", step: 0, ring_bytes: 2 ** 20, host_bytes: 2 ** 30, disk_bytes: 0 },
    {
      kind: "placement",
      step: 20,
      tensors: 3,
      mismatched: 1,
      on_host: 0,
      blocks: 0,
      first: "layers.0.weight (4 KiB)\n  direct wrong bytes arrived <b>",
    },
    { kind: "out_of_memory", step: 51, message: "HIP out of memory", offloaded: null, micro_batch: /** @type {number | null} */ (null) },
    { kind: "out_of_memory", step: 51, message: "HIP out of memory", offloaded: 2 ** 30, micro_batch: /** @type {number | null} */ (null) },
    { kind: "out_of_memory", step: 51, message: "HIP out of memory", offloaded: null, micro_batch: 2 },
    { kind: "rolled_back", from_step: 60, to_step: 40, seen: [{}, {}] },
    { kind: "resumed", step: 40, changes: [{ key: "train.learning_rate", before: 1, now: 2 }] },
  ];
  place.append("tried", lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
  const page = await place.page();
  await page.goto(`http://127.0.0.1:${place.port}/#/run/tried`);
  const events = page.locator("ul.events");
  for (const text of [
    "Block swapping starts: 1 GiB of blocks share 1 MiB of buffers on the device.",
    "3 tensors needed another attempt, 1 arrived damaged.",
    "Out of memory: repeated after emptying caches.",
    "Out of memory: repeated with 1 GiB offloaded.",
    "Out of memory: repeated with micro-batches of 2 samples.",
    "Skipped, with a loss of NaN and a gradient norm of inf (row 12). The gradient of layers.3.mlp.down_proj.weight and 2 more is not finite.",
    "Back from step 60 to the checkpoint of this step, after 2 skipped steps.",
    "Resumed with another config: train.learning_rate 1 → 2.",
  ])
    await events.getByText(text).waitFor();
  // The record itself is shown to those who ask.
  assert.equal(await events.locator("code").first().isVisible(), false);
  await events.locator("summary").first().click();
  assert.equal(await events.locator("code").first().isVisible(), true);
  assert.equal(await events.locator("code b").count(), 0);
  // On each curve, and in what a screen reader is told of it.
  const told = await page.locator(".chart [role=img]").evaluateAll((charts) => charts.map((chart) => chart.ariaLabel));
  assert.ok(told.length >= 5);
  for (const label of told) assert.match(label, /Marks: .*damaged copy at step 20.*micro-batch 2 at step 51/);
  await page.context().close();
});

test("the list is sorted and filtered, and a run has tags, a note and a table of its numbers", async () => {
  const page = await place.page();
  await page.waitForSelector("table");
  const names = () => page.locator("tbody th > a").allTextContents();
  await page.getByRole("columnheader", { name: "Run" }).getByRole("button").click();
  const up = await names();
  assert.deepEqual(
    up,
    [...up].sort((one, other) => (one.toLowerCase() < other.toLowerCase() ? -1 : 1)),
  );
  await page.getByRole("columnheader", { name: "Run" }).getByRole("button").click();
  assert.deepEqual(await names(), up.reverse());
  // A column that is left out stays so.
  await page.locator("summary", { hasText: "Columns" }).click();
  await page.getByRole("checkbox", { name: "Tokens/s" }).uncheck();
  await page.getByRole("columnheader", { name: "Tokens/s" }).waitFor({ state: "detached" });
  await page.reload();
  await page.waitForSelector("table");
  assert.equal(await page.locator("thead th").count(), await page.locator("tbody tr").first().locator("th, td").count());
  assert.equal(await page.getByRole("columnheader", { name: "Tokens/s" }).count(), 0);
  await page.getByRole("combobox", { name: "State" }).selectOption("failed");
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
  assert.deepEqual(await names(), ["qwen3-lora"]);
  await at(page, "#/run/small");
  await page.locator("summary", { hasText: "Notes" }).click();
  await page.getByLabel("Tags, with commas between them").fill("good, <i>fine");
  await page.getByRole("textbox", { name: "Note", exact: true }).fill("The best so far.");
  await page.getByRole("button", { name: "Save notes" }).click();
  await page.getByRole("button", { name: "Saved" }).waitFor();
  assert.deepEqual(JSON.parse(readFileSync(join(place.runs, "small/notes.json"), "utf8")), {
    tags: ["good", "<i>fine"],
    text: "The best so far.",
  });
  const csv = await page.evaluate(() => fetch("/api/runs/small/metrics.csv").then((answer) => answer.text()));
  const [head, first] = csv.split("\n");
  assert.match(head, /^step,loss,/);
  assert.match(first, /^10,\d/);
  await at(page, "#/");
  await page.getByRole("button", { name: "<i>fine" }).click();
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
  assert.deepEqual(await names(), ["small"]);
  rmSync(join(place.runs, "small/notes.json"));
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("a run is removed after a second question only", async () => {
  writeRun(place.runs, "doomed", { done: 20, ending: "stopped" });
  const page = await place.page();
  await at(page, "#/run/doomed");
  await page.getByRole("button", { name: "Remove" }).click();
  await page.getByRole("button", { name: "No" }).click();
  await page.getByRole("button", { name: "Remove" }).click();
  await page.getByRole("button", { name: "Yes" }).click();
  await page.waitForSelector("h1:has-text('Runs')");
  await page.getByRole("link", { name: "doomed" }).waitFor({ state: "detached" });
  await page.context().close();
});

test("the end of a run is told, if that was asked for", async () => {
  const folder = writeRun(place.runs, "night", { done: 20, ending: "running" });
  // It holds the lock as the trainer does.
  const run = spawn("flock", ["--no-fork", folder, "sleep", "600"]);
  const page = await place.page();
  await page.context().grantPermissions(["notifications"]);
  await page.evaluate(() => {
    globalThis.told = [];
    class Told {
      static permission = "granted";
      static requestPermission = async () => "granted";
      constructor(/** @type {string} */ title) {
        globalThis.told.push(title);
      }
    }
    Object.assign(globalThis, { Notification: Told });
  });
  await page.getByLabel("Notify me at the end").check();
  await page.waitForSelector("tr:has-text('night') .badge.running");
  run.kill("SIGKILL");
  await page.waitForFunction(() => globalThis.told.length > 0);
  assert.deepEqual(await page.evaluate(() => globalThis.told), ["night: interrupted"]);
  rmSync(folder, { recursive: true });
  await page.context().close();
});

test("the GPUs are shown as they are, and what the driver does not say as unknown", async () => {
  const system = join(place.folder, "system");
  const page = await place.page();
  await at(page, "#/doctor");
  await page.waitForSelector("h2:has-text('What does this message mean?')");
  assert.equal(await page.locator("article.gpu").count(), 0);
  writeGpu(system, "card0");
  await at(page, "#/");
  await page.waitForSelector("table");
  await at(page, "#/doctor");
  const figure = (/** @type {string} */ name) => page.locator("article.gpu[aria-label=card0] .figure", { hasText: name }).locator("dd");
  assert.match(await figure("VRAM").textContent(), /^9\.5 GiB of 16 GiB/);
  assert.equal(await figure("Utilisation").textContent(), "97 %");
  assert.equal(await figure("Clock").textContent(), "2,450 MHz");
  assert.equal(await figure("Hotspot").textContent(), "unknown");
  assert.deepEqual(await serious(page), []);
  if (pictures) await page.locator("section:has(article.gpu)").screenshot({ path: join(pictures, "ui-gpu.png") });
  // It comes anew, and an APU that is silent on something has no number there.
  writeGpu(system, "card0", { gpu_busy_percent: null, mem_info_gtt_used: 2 * 2 ** 30, "hwmon/hwmon3/power1_average": 0 });
  await page.waitForFunction(() => document.querySelector("article.gpu").textContent.includes("2 GiB of 31 GiB"));
  assert.equal(await figure("Utilisation").textContent(), "unknown");
  assert.equal(await figure("Power").textContent(), "0 W");
  // It stands beside a run that goes on, with what that takes of it.
  const folder = writeRun(place.runs, "busy", { done: 20, ending: "running" });
  const run = spawn("flock", ["--no-fork", folder, "sleep", "600"]);
  const fdinfo = join(system, "proc", String(run.pid), "fdinfo");
  mkdirSync(fdinfo, { recursive: true });
  writeFileSync(join(fdinfo, "5"), "drm-driver:\tamdgpu\ndrm-client-id:\t3\ndrm-pdev:\t0000:03:00.0\ndrm-memory-vram:\t4096 KiB\n");
  await at(page, "#/run/busy");
  await page.waitForSelector(`article.gpu:has-text('busy, process ${run.pid}: 4 MiB VRAM, unknown GTT')`);
  run.kill("SIGKILL");
  await page.locator("article.gpu").waitFor({ state: "detached" });
  rmSync(folder, { recursive: true });
  rmSync(system, { recursive: true });
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("a run that goes on is stopped with a button, and asked once", async () => {
  const folder = writeRun(place.runs, "going", { done: 20, ending: "running" });
  const run = spawn("flock", ["--no-fork", folder, "sh", "-c", "trap '' INT; exec sleep 600"]);
  const page = await place.page();
  await at(page, "#/run/going");
  await page.getByRole("button", { name: "Stop and save" }).click();
  await page.waitForSelector("button:has-text('Saving'):disabled");
  const again = await page.evaluate(() => fetch("/api/runs/going/stop", { method: "POST" }).then((answer) => answer.json()));
  assert.equal(again, "already_asked");
  run.kill("SIGKILL");
  await page.waitForSelector(".badge.interrupted");
  rmSync(folder, { recursive: true });
  await page.context().close();
});

test("everything is reached with the keyboard", async () => {
  const page = await place.page();
  await page.waitForSelector("table");
  const focused = () => page.evaluate(() => document.activeElement?.textContent ?? "");
  for (let presses = 0; presses < 60 && (await focused()) !== "small"; presses += 1) await page.keyboard.press("Tab");
  assert.equal(await focused(), "small");
  await page.keyboard.press("Enter");
  await page.waitForSelector("h1:has-text('small')");
  const from = page.getByLabel("Steps from");
  await from.focus();
  await page.keyboard.type("300");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector(".chart [role=img]")?.ariaLabel.includes("at step 300,"));
  await page.context().close();
});

test("a phone needs no scrolling to the side", async () => {
  const page = await place.page({ viewport: { width: 390, height: 844 }, colorScheme: "dark", hasTouch: true, isMobile: true });
  await page.waitForSelector("table");
  for (const hash of ["#/", "#/run/small", "#/compare?run=small&run=small-2"]) {
    await at(page, hash);
    await page.waitForSelector(hash === "#/" ? "table" : ".u-over");
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `${hash} is ${wide} pixels too wide`);
  }
  await at(page, "#/run/small");
  await page.waitForSelector(".u-over");
  await picture(page, "phone");
  await page.context().close();
});

for (const colorScheme of /** @type {const} */ (["light", "dark"])) {
  test(`axe-core finds nothing serious, ${colorScheme}`, async () => {
    const page = await place.page({ colorScheme });
    await page.waitForSelector("table");
    assert.deepEqual(await serious(page), []);
    if (colorScheme === "light") await picture(page, "runs");
    await at(page, "#/run/small");
    await page.waitForSelector(".u-over");
    assert.deepEqual(await serious(page), []);
    if (colorScheme === "light") await picture(page, "run");
    await at(page, "#/run/qwen3-lora");
    await page.waitForSelector("h2:has-text('Cause of the failure')");
    assert.deepEqual(await serious(page), []);
    await at(page, "#/compare?run=small&run=small-2");
    await page.waitForSelector(".u-over");
    assert.deepEqual(await serious(page), []);
    if (colorScheme === "light") await picture(page, "compare");
    await at(page, "#/doctor");
    await page.waitForSelector(".verdict");
    assert.deepEqual(await serious(page), []);
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  });
}

test("the page is at most 100 kB over the wire, and asks nobody else", async () => {
  const context = await place.browser.newContext();
  const page = await context.newPage();
  const client = await context.newCDPSession(page);
  await client.send("Network.enable");
  let bytes = 0;
  const hosts = new Set();
  client.on("Network.responseReceived", (event) => hosts.add(new URL(event.response.url).host));
  client.on("Network.loadingFinished", (event) => {
    bytes += event.encodedDataLength;
  });
  await page.goto(place.url);
  await page.waitForSelector("table");
  assert.ok(bytes > 10_000 && bytes < 100_000, `${bytes} bytes`);
  assert.deepEqual(
    [...hosts].filter((host) => host !== "" && host !== `127.0.0.1:${place.port}`),
    [],
  );
  await context.close();
});

test("two hundred runs, and one of a hundred thousand points", async () => {
  const other = await Place.open();
  for (let run = 0; run < 200; run += 1) writeRun(other.runs, `run-${run}`, { done: 20, ending: "completed" });
  let text = "";
  for (let step = 1; step <= 100_000; step += 1) {
    text += `{"kind":"train","step":${step},"loss":${step === 77_777 ? 50 : 2},"learning_rate":0.001,"grad_norm":1,"tokens_per_second":1000,"memory":{"resident":1}}\n`;
  }
  other.append("run-7", text);
  const page = await other.page();
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 200);
  await page.goto(`http://127.0.0.1:${other.port}/#/run/run-7`);
  await page.waitForFunction(() => document.querySelector(".chart [role=img]")?.ariaLabel.includes("at step 100000"));
  const curves = await page.evaluate(() => fetch("/api/runs/run-7/curves").then((answer) => answer.json()));
  assert.ok(curves.train.steps.length <= 1000);
  const loss = curves.train.curves.find((/** @type {{ name: string }} */ curve) => curve.name === "loss");
  assert.equal(Math.max(...loss.max), 50);
  assert.deepEqual(page.complaints, []);
  await other.close();
});

test("a search for a learning rate is a picture with what was found, and its reason", async () => {
  const folder = writeRun(place.runs, "small-lr", { done: 0, ending: "completed" });
  const lines = Array.from({ length: 90 }, (_, step) => {
    const rate = 1e-7 * 10 ** (step / 15);
    const line = JSON.parse(trainLine(step + 1, 106, rate, () => 0));
    return { ...line, learning_rate: rate, loss: 3 - 1 / (1 + 1e-4 / rate) + (rate / 1e-2) ** 2 };
  });
  lines.push({ kind: "learning_rate", step: 90, learning_rate: 3.1e-4, reason: "a tenth of 3.1e-3, where the loss was lowest" });
  writeFileSync(join(folder, "metrics.jsonl"), lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
  const page = await place.page();
  await at(page, "#/run/small-lr");
  const picture_ = page.getByRole("img", { name: /Loss over the learning rate. Suggested learning rate: 0.00031/ });
  await picture_.waitFor();
  await page.waitForSelector("text=a tenth of 3.1e-3");
  // The mark stands above the rate on the axis: between 1e-4 and 1e-3.
  const places = await picture_.evaluate((svg) => {
    const text = (/** @type {string} */ label) => [...svg.querySelectorAll("text")].find((one) => one.textContent === label);
    const [low, high] = ["1e-4", "1e-3"].map((label) => Number(text(label).getAttribute("x")));
    return { low, high, mark: Number(svg.querySelector(".mark line").getAttribute("x1")) };
  });
  assert.ok(places.low < places.mark && places.mark < places.high, JSON.stringify(places));
  assert.equal(await picture_.locator("path").count(), 2);
  await picture(page, "search");
  assert.deepEqual(await serious(page), []);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});
