// The data of a config, and prompts to what a run has made, with the real trainer.
import assert from "node:assert/strict";
import { appendFileSync, copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Place, writeRun } from "./place.mjs";
import { CONFIG, open, PHONE, picture, png, serious, tooWide, until } from "./shared.mjs";

/** @import { Page } from "playwright-core" */

/** @type {Place} */
let place;

const PICTURES = `name: pictures
model: {name_or_path: wan}
adapter: {r: 2}
data:
  path: pictures
  resolution: 64
  num_frames: 5
train: {bf16: false, max_steps: 2, per_device_train_batch_size: 1}
`;

before(async () => {
  place = await Place.open();
  writeFileSync(join(place.folder, "text.txt"), Array.from({ length: 400 }, (_, n) => `${n} bottles of <b>ale</b>\n`).join(""));
  const folder = join(place.folder, "pictures");
  mkdirSync(join(folder, "walk"), { recursive: true });
  writeFileSync(join(folder, "boat.png"), png(96, 48, [40, 160, 220]));
  writeFileSync(join(folder, "boat.txt"), "a <i>boat</i> on the sea\n");
  writeFileSync(join(folder, "tower.png"), png(48, 96, [220, 180, 60]));
  for (let frame = 0; frame < 6; frame += 1) writeFileSync(join(folder, "walk", `${frame}.png`), png(64, 64, [frame * 40, 200, 120]));
  writeFileSync(join(folder, "walk.txt"), "a walk\n");
  // Of a model, only the configs are read.
  const golden = new URL("../../../../tests/reference/golden/wan/", import.meta.url);
  for (const [part, from] of [
    ["transformer", "training/transformer"],
    ["vae", "autoencoder-2.1"],
  ]) {
    mkdirSync(join(place.folder, "wan", part), { recursive: true });
    copyFileSync(new URL(`${from}/config.json`, golden), join(place.folder, "wan", part, "config.json"));
  }
  writeFileSync(join(place.folder, "wan/model_index.json"), '{"_class_name": "WanPipeline"}');
});

after(() => place?.close());

async function look(/** @type {Page} */ page, /** @type {string} */ config) {
  await page.getByRole("textbox", { name: "Config", exact: true }).fill(config);
  await page.waitForSelector(".actions .badge.completed");
  await page.getByRole("button", { name: "Show the data" }).click();
}

test("rows of text have what is learned marked, and are shown as text", async () => {
  const page = await open(place, "#/new?whole");
  await look(page, CONFIG);
  await page.waitForSelector("text=/20 of [0-9]+ rows/");
  const row = page.locator(".rows li").first();
  assert.match(await row.textContent(), /17 tokens, 16 of them trained on/);
  const marked = (await row.locator("mark").allTextContents()).join("");
  assert.equal(Buffer.byteLength(marked), 16);
  assert.equal(await page.locator(".rows b").count(), 0);
  await picture(page, "data-text", page.locator("section:has(.rows)").last(), 460);
  await page.getByRole("button", { name: "More rows" }).click();
  await page.waitForFunction(() => document.querySelectorAll(".rows li").length === 100);
  assert.deepEqual(await serious(page), []);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("pictures have their buckets, and captions that are changed as long as nobody else does", async () => {
  const page = await open(place, "#/new?whole");
  await look(page, PICTURES);
  const item = (/** @type {string | RegExp} */ name) => page.getByRole("listitem", { name });
  await item("boat.png").waitFor();
  assert.match(await item("boat.png").textContent(), /96 × 48, training size \d+ × \d+/);
  assert.match(await item("tower.png").textContent(), /has no caption/);
  assert.match(await item("walk").textContent(), /clips: frames 0 to 4/);
  await page.waitForFunction(() => [...document.querySelectorAll(".media img")].every((each) => each.complete && each.naturalWidth > 0));
  assert.equal(await item("boat.png").getByLabel("Caption").inputValue(), "a <i>boat</i> on the sea");
  const caption = (/** @type {string} */ name) => readFileSync(join(place.folder, "pictures", name), "utf8");
  // By the keyboard alone.
  await item("tower.png").getByLabel("Caption").focus();
  await page.keyboard.type("a tower");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await item("tower.png").getByRole("button", { name: "Saved" }).waitFor();
  assert.equal(caption("tower.txt"), "a tower\n");
  writeFileSync(join(place.folder, "pictures/boat.txt"), "somebody else's\n");
  await item("boat.png").getByLabel("Caption").fill("mine");
  await item("boat.png").getByRole("button", { name: "Save caption" }).click();
  await item("boat.png").getByText("the caption has changed meanwhile").waitFor();
  assert.equal(caption("boat.txt"), "somebody else's\n");
  await page.getByLabel("Training size").selectOption({ index: 1 });
  assert.ok((await page.locator(".media li").count()) < 3);
  await page.getByLabel("Training size").selectOption("");
  await picture(page, "data", page.locator("section:has(.media)").last());
  assert.deepEqual(await serious(page), []);
  await page.context().close();
});

test("what the network may not reach is not looked at", async () => {
  const page = await open(place, "#/new?whole");
  const said = await page.evaluate(
    async (config) => {
      const response = await fetch("/api/data", { method: "POST", body: JSON.stringify({ config }) });
      return response.json();
    },
    CONFIG.replace("text.txt", "/etc/passwd"),
  );
  assert.equal(said.found, null);
  assert.match(said.error, /not allowed/);
  await page.context().close();
});

test("a prompt is answered as it comes, by what a run has made, and stopped", async () => {
  const page = await open(place, "#/new?whole");
  // A context that holds the long answer which is stopped below.
  const config = CONFIG.replace("name: tiny", "name: asked")
    .replace("block_size: 16", "block_size: 2048\n  validation_fraction: 0")
    .replace("per_device_train_batch_size: 2", "per_device_train_batch_size: 1");
  await page.getByRole("textbox", { name: "Config", exact: true }).fill(config);
  await page.waitForSelector(".actions .badge.completed");
  await page.getByRole("button", { name: "Add to the queue" }).click();
  await page.waitForSelector('li[aria-label$="asked, completed"]', { timeout: 120_000 });
  assert.ok(existsSync(join(place.runs, "asked/model")));
  await page.goto(`http://127.0.0.1:${place.port}/#/run/asked`);
  await page.locator("form.ask textarea").fill("12 bottles");
  // The likeliest token is never the end of the text, which a random one may be.
  await page.getByLabel("Temperature").fill("0");
  await page.getByLabel("Max. new tokens").fill("24");
  await page.getByRole("button", { name: "Generate" }).click();
  await page.getByLabel("Answer").waitFor();
  await page.waitForFunction(() => !document.querySelector("form.ask button[type=submit]").disabled);
  assert.ok((await page.getByLabel("Answer").textContent()).length > 3);
  await picture(page, "ask", page.locator("section:has(form.ask)"));
  await page.getByLabel("Max. new tokens").fill("4096");
  await page.getByRole("button", { name: "Generate" }).click();
  await page.getByLabel("Answer").waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await page.waitForSelector("text=Stopped.");
  // Nothing is left of it, so the next may ask at once.
  await page.getByLabel("Max. new tokens").fill("1");
  await until(page, async () => {
    const response = await fetch("/api/generate", {
      method: "POST",
      body: JSON.stringify({ run: "asked", prompt: "x", max_new_tokens: 1 }),
    });
    await response.text();
    return response.ok;
  });
  assert.deepEqual(await serious(page), []);
  await page.context().close();
});

test("a run of a video model has fields for a video, and says that a run uses the GPU", async () => {
  const folder = writeRun(place.runs, "horses", { ending: "completed" });
  const path = join(folder, "run.json");
  const facts = { ...JSON.parse(readFileSync(path, "utf8")), kind: "diffusion", generate: ["--model=wan"] };
  writeFileSync(path, JSON.stringify(facts));
  appendFileSync(join(folder, "config.yaml"), "  num_frames: [1, 9]\n");
  const page = await open(place, "#/run/horses");
  await page.getByLabel("Frames").fill("9");
  await page.getByLabel("Steps", { exact: true }).fill("2");
  assert.equal(await page.getByLabel("Max. new tokens").count(), 0);
  await page.locator("form.ask textarea").fill("a horse");
  let asked = 0;
  await page.route("**/api/generate", (route) => {
    asked += 1;
    const { beside, frames, steps } = route.request().postDataJSON();
    assert.deepEqual([frames, steps], [9, 2]);
    if (!beside) return route.fulfill({ status: 409, json: { error: "`night` uses the GPU: both might run out of memory" } });
    const lines = [
      { progress: "step 1 of 2\nstep 2 of 2\n" },
      { end: true, error: /** @type {string | null} */ (null), file: "/api/tried/0123456789abcdef.webp" },
    ];
    return route.fulfill({ contentType: "application/x-ndjson", body: lines.map((line) => `${JSON.stringify(line)}\n`).join("") });
  });
  const pixel = Buffer.from("UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA==", "base64");
  await page.route("**/api/tried/*", (route) => route.fulfill({ contentType: "image/webp", body: pixel }));
  await page.getByRole("button", { name: "Generate", exact: true }).click();
  await page.waitForSelector("text=`night` uses the GPU");
  // With the keyboard, as everything.
  await page.getByRole("button", { name: "Generate anyway" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("img", { name: "Output for: a horse" }).waitFor();
  assert.equal(asked, 2);
  assert.deepEqual(await serious(page), []);
  await page.context().close();
});

test("a whole model that has no result yet is tried at its checkpoints", async () => {
  const folder = writeRun(place.runs, "unfinished", { ending: "stopped" });
  const path = join(folder, "run.json");
  const facts = { ...JSON.parse(readFileSync(path, "utf8")), generate_checkpoint: ["--model=m", "--checkpoint={checkpoint}"] };
  writeFileSync(path, JSON.stringify(facts));
  let page = await open(place, "#/run/unfinished");
  await page.getByRole("heading", { name: "Samples" }).waitFor();
  assert.equal(await page.locator("form.ask").count(), 0);
  await page.context().close();
  for (const step of ["000100", "000200"]) mkdirSync(join(folder, "checkpoints", `step-${step}`), { recursive: true });
  page = await open(place, "#/run/unfinished");
  const checkpoint = page.locator("form.ask").getByLabel("Checkpoint");
  await checkpoint.waitFor();
  assert.deepEqual(await checkpoint.locator("option").allTextContents(), ["step 200", "step 100"]);
  await checkpoint.selectOption("step 100");
  await page.route("**/api/generate", (route) => {
    assert.equal(route.request().postDataJSON().checkpoint, 100);
    const lines = [{ text: "so far" }, { end: true, error: /** @type {string | null} */ (null) }];
    return route.fulfill({ contentType: "application/x-ndjson", body: lines.map((line) => `${JSON.stringify(line)}\n`).join("") });
  });
  await page.getByRole("button", { name: "Generate", exact: true }).click();
  await page.locator("figcaption", { hasText: /^step 100, seed/ }).waitFor();
  await page.context().close();
});

for (const colorScheme of /** @type {const} */ (["light", "dark"])) {
  test(`data on a phone, ${colorScheme}: nothing is too wide, and axe-core finds nothing serious`, async () => {
    const page = await open(place, "#/data?like=asked", { colorScheme, ...PHONE });
    await page.locator(".rows li").first().waitFor();
    assert.ok((await tooWide(page)) <= 0);
    assert.deepEqual(await serious(page), []);
    await page.goto(`http://127.0.0.1:${place.port}/#/new?whole`);
    await look(page, PICTURES);
    await page.locator(".media li").first().waitFor();
    assert.ok((await tooWide(page)) <= 0);
    assert.deepEqual(await serious(page), []);
    await page.context().close();
  });
}
