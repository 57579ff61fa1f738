// The queue and what starts runs, in a real browser, with the real trainer.
import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Place, program } from "./place.mjs";
import { serious, until } from "./shared.mjs";

const pictures = process.env.SCREENSHOTS;
/** The machine may do much else. */
const LIMIT = 300_000;

const CONFIG = `name: tiny
device: cpu
threads: 1
model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}
data: {path: text.txt, block_size: 16}
sample: {max_new_tokens: 4}
train:
  bf16: false
  max_steps: 6
  per_device_train_batch_size: 2
  logging_steps: 2
  eval_steps: 0
  save_steps: 0
`;
/** Its weights grow without end, which no look beforehand can tell. */
const STEEP = CONFIG.replace("name: tiny", "name: steep").replace(
  "max_steps: 6",
  "max_steps: 1000\n  learning_rate: 10\n  weight_decay: 1",
);

/** @import { Page } from "playwright-core" */

/** @type {Place} */
let place;

before(async () => {
  const trainer = join(program, "../surefoot-trainer");
  assert.ok(existsSync(trainer), `${trainer} is not built: cargo build -p surefoot`);
  place = await Place.open();
  writeFileSync(join(place.folder, "text.txt"), Array.from({ length: 400 }, (_, n) => `${n} bottles of ale\n`).join(""));
});

after(async () => {
  if (!place) return;
  // Runs outlive the server: what still goes on is stopped first.
  const page = await place.page();
  await page.evaluate(async () => {
    const post = (/** @type {string} */ path, /** @type {object} */ body = undefined) =>
      fetch(`/api/queue${path}`, { method: "POST", body: body && JSON.stringify(body) });
    await post("/pause", { paused: true });
    for (let left = 600; left > 0; left -= 1) {
      const { jobs } = await (await fetch("/api/queue")).json();
      const active = jobs.filter((/** @type {import("../src/api").Job} */ job) => job.state === "running" || job.state === "checking");
      if (active.length === 0) return;
      for (const job of active) await post(`/${job.id}/stop`);
      await new Promise((done) => setTimeout(done, 500));
    }
  });
  await place.close();
});

async function open(/** @type {string} */ hash, /** @type {import("playwright-core").BrowserContextOptions} */ options = {}) {
  const page = await place.page(options);
  page.setDefaultTimeout(LIMIT);
  await at(page, hash);
  return page;
}

const at = (/** @type {Page} */ page, /** @type {string} */ hash) => page.goto(`http://127.0.0.1:${place.port}/${hash}`);
const job = (/** @type {Page} */ page, /** @type {string} */ label) => page.waitForSelector(`li[aria-label="${label}"]`);

async function add(/** @type {Page} */ page, /** @type {string} */ config) {
  await at(page, "#/new?whole");
  await page.getByRole("textbox", { name: "Config" }).fill(config);
  await page.waitForSelector(".actions .badge.completed");
  await page.getByRole("button", { name: "Add to the queue" }).click();
  await page.waitForSelector("h1:has-text('Queue')");
}

test("a queue of three real runs goes on after one that breaks, and after the server was killed", async () => {
  const page = await open("#/queue");
  await page.getByRole("button", { name: "Pause the queue" }).click();
  await page.getByRole("button", { name: "Start the queue" }).waitFor();
  await add(page, CONFIG);
  await add(page, CONFIG);
  await add(page, STEEP);
  await job(page, "Job 3, steep, waiting");
  // By the keyboard, to the second place.
  const up = page.getByRole("button", { name: "Move job 3 up" });
  await up.focus();
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelectorAll("li.job")[1]?.ariaLabel === "Job 3, steep, waiting");
  if (pictures) await page.locator("main").screenshot({ path: join(pictures, "ui-queue.png") });
  await page.getByRole("button", { name: "Start the queue" }).click();
  await page.waitForSelector("h2:has-text('Now')");
  await place.stop("SIGKILL");
  await place.start();
  await page.reload();
  await job(page, "Job 1, tiny, completed");
  await job(page, "Job 3, steep, failed");
  await job(page, "Job 2, tiny-2, completed");
  const broken = page.locator('li[aria-label="Job 3, steep, failed"]');
  assert.match(await broken.locator("pre.problem").textContent(), /3 steps in a row/);
  await broken.locator("summary").click();
  await broken.locator("pre.log").waitFor();
  assert.match(await broken.locator("pre.log").textContent(), /skipped step/);
  await broken.getByRole("link", { name: "steep", exact: true }).click();
  await page.waitForSelector(".badge.failed");
  await page.waitForSelector("h1:has-text('steep')");
  await page.context().close();
});

test("what is wrong with a config is told while it is typed, with its place", async () => {
  const page = await open("#/new?whole");
  const box = page.getByRole("textbox", { name: "Config" });
  await box.fill(CONFIG.replace("logging_steps", "loging_steps"));
  const problem = page.getByRole("button", { name: /config:11:3/ });
  await problem.waitFor();
  assert.match(await problem.textContent(), /unknown key `loging_steps`.*did you mean `logging_steps`/);
  assert.ok(await page.getByRole("button", { name: "Add to the queue" }).isDisabled());
  await problem.click();
  const caret = await box.evaluate((/** @type {HTMLTextAreaElement} */ area) => area.value.slice(area.selectionStart).split("\n")[0]);
  assert.equal(caret, "loging_steps: 2");
  // What the network may not reach is said with its place, too.
  await box.fill(CONFIG.replace("path: text.txt", "path: /etc/passwd"));
  await page.getByRole("button", { name: /config:5:14.*not allowed/ }).waitFor();
  await box.fill("name: <img src=x onerror=alert(1)>\nx: [\n");
  await page.waitForSelector(".problem, .problems button");
  assert.equal(await page.locator("main img").count(), 0);
  await box.fill(CONFIG);
  await page.waitForSelector(".actions .badge.completed");
  await page.getByRole("button", { name: "Estimate memory and time" }).click();
  await page.waitForSelector("h2:has-text('Memory and time')");
  await page.waitForSelector("text=trainable parameters");
  await page.context().close();
});

test("a run is duplicated with what is different shown, asked for a checkpoint and samples, stopped and resumed", async () => {
  const page = await open("#/run/tiny");
  await page.getByRole("link", { name: "Duplicate" }).click();
  await page.waitForSelector("h1:has-text('Duplicate tiny')");
  await page.getByLabel("Name").fill("long");
  await page.getByText("Nothing yet.").waitFor();
  const form = page.getByRole("region", { name: "Form" });
  await form.getByLabel("Find a key").fill("max_steps");
  await form.getByLabel("max_steps", { exact: true }).fill("10000000");
  await form.getByLabel("max_steps", { exact: true }).press("Tab");
  await page.getByText("1 new lines, 1 gone.").waitFor();
  assert.match(await page.locator(".diff ins").first().textContent(), /\+ {3}max_steps: 10000000/);
  assert.match(await page.locator(".diff del").first().textContent(), /− {3}max_steps: 6/);
  assert.deepEqual(await serious(page), []);
  if (pictures) await page.screenshot({ path: join(pictures, "ui-duplicate.png") });
  await page.waitForSelector(".actions .badge.completed");
  await page.getByRole("button", { name: "Add to the queue" }).click();
  const row = page.locator("li[aria-label*='long, ']");
  // How far it is, and its loss, are in the queue, too.
  await row.getByText(/[\d,]+ \/ 10,000,000/).waitFor();
  await row.getByText(/loss \d/).waitFor();
  await row.getByText(/left$/).waitFor();
  await row.getByRole("link", { name: "long", exact: true }).click();
  await page.waitForSelector("h1:has-text('long')");
  await page.waitForFunction(() => document.querySelector(".chart [role=img]")?.ariaLabel.includes("at step"));
  const folder = join(place.runs, "long");
  const checkpoints = () =>
    existsSync(join(folder, "checkpoints")) ? readdirSync(join(folder, "checkpoints")).filter((name) => name.startsWith("step-")) : [];
  assert.deepEqual(checkpoints(), []);
  await page.getByRole("button", { name: "Save now" }).click();
  await page.waitForSelector("text=A checkpoint will be saved after this step.");
  await page.getByRole("button", { name: "Sample now" }).click();
  await page.waitForSelector("section:has-text('Samples')");
  await page.locator("summary", { hasText: "Log" }).click();
  await page.waitForSelector("pre.log:has-text('saved ')");
  assert.equal(checkpoints().length, 1);
  assert.equal(readFileSync(join(folder, "config.yaml"), "utf8").match(/max_steps: 10000000/g).length, 1);
  await page.getByRole("button", { name: "Stop and save" }).click();
  await page.waitForSelector(".badge.stopped");
  // The queue knows it a moment later, and until then refuses a second job for the run.
  await until(page, async () => {
    const { jobs } = await (await fetch("/api/queue")).json();
    return jobs.every((/** @type {{ state: string }} */ { state }) => state === "ended");
  });
  await page.getByRole("button", { name: "Resume" }).click();
  await page.waitForSelector("h1:has-text('Queue')");
  await page.waitForSelector("li[aria-label$='long, running']");
  // One that is stopped earlier has nothing to say of it.
  while (!/resumed {4}after step/.test(readFileSync(join(folder, "output.log"), "utf8"))) await page.waitForTimeout(100);
  await page.locator("li[aria-label$='long, running']").getByRole("button", { name: "Stop and save" }).click();
  await page.waitForFunction(() => document.querySelectorAll("li[aria-label$='long, stopped']").length === 2);
  await page.context().close();
});

test("how many run at once is chosen with the keyboard, and another server on the folder shows it", async () => {
  const other = await place.second();
  try {
    const [page, there] = [await open("#/queue"), await other.page()];
    await there.goto(`http://127.0.0.1:${other.port}/#/queue`);
    const [choice, theirs] = [page, there].map((one) => one.getByRole("combobox", { name: "Runs at once" }));
    await choice.focus();
    await page.keyboard.press("ArrowDown");
    await page.waitForFunction(() => document.querySelector("main select").value === "per_gpu");
    await theirs.waitFor();
    await there.waitForFunction(() => document.querySelector("main select").value === "per_gpu");
    // Both see the queue, and a job that is added at one is done once.
    await add(page, CONFIG.replace("name: tiny", "name: shared"));
    const done = "li[aria-label$='shared, completed']";
    await Promise.all([page.waitForSelector(done), there.waitForSelector(done)]);
    assert.equal(readdirSync(place.runs).filter((name) => name.startsWith("shared")).length, 1);
    assert.match(await there.locator(done).textContent(), /on cpu/);
    await theirs.selectOption("one");
    await page.waitForFunction(() => document.querySelector("main select").value === "one");
    for (const one of [page, there]) await one.context().close();
  } finally {
    await other.stop();
  }
});

test("a run that cannot work is not started, says why and what helps, and is forced by who insists", async () => {
  const page = await open("#/queue");
  // A look at the config finds nothing: only the dry run opens the data.
  await page.evaluate(
    async (config) => {
      await fetch("/api/queue", { method: "POST", body: JSON.stringify({ config }) });
    },
    CONFIG.replace("name: tiny", "name: nothing").replace("text.txt", "missing.txt"),
  );
  const refused = page.locator("li[aria-label$='nothing, refused']");
  await refused.waitFor();
  assert.match(await refused.locator("pre.problem").textContent(), /missing\.txt/);
  assert.ok(!existsSync(join(place.runs, "nothing")));
  await refused.getByRole("button", { name: "Start anyway" }).click();
  await refused.getByRole("button", { name: "Yes" }).click();
  const failed = page.locator("li[aria-label$='nothing, failed']");
  await failed.waitFor();
  assert.match(await failed.textContent(), /without a check/);
  await page.context().close();
});

for (const colorScheme of /** @type {const} */ (["light", "dark"])) {
  test(`the queue on a phone, ${colorScheme}: nothing is too wide, and axe-core finds nothing serious`, async () => {
    const page = await open("#/queue", { colorScheme, viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
    await job(page, "Job 1, tiny, completed");
    for (const hash of ["#/queue", "#/new?whole", "#/new?like=tiny"]) {
      await at(page, hash);
      await page.waitForSelector(hash === "#/queue" ? "li.job" : ".actions .badge.completed");
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(wide <= 0, `${hash} is ${wide} pixels too wide`);
      assert.deepEqual(await serious(page), [], hash);
    }
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  });
}
