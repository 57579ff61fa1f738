// Samples of a run and of two runs: the grid, the comparison of two of them, and clips that play in step.
import assert from "node:assert/strict";
import { appendFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Place, writeRun } from "./place.mjs";
import { open, PHONE, picture, png, serious, tooWide } from "./shared.mjs";

const STEPS = [0, 200, 400, 600];
const PROMPTS = ["a boat on the sea", "a <b>tower</b>"];
const SETTINGS = "96 × 64 pixels, seed 42, 20 steps, guidance 4";

/** @import { Page } from "playwright-core" */

/** @type {Place} */
let place;

/** A run whose samples are files: `content(step, prompt)` makes each. */
function writeSamples(
  /** @type {string} */ name,
  /** @type {string} */ extension,
  /** @type {string} */ text,
  /** @type {(step: number, prompt: number) => Buffer} */ content,
) {
  const folder = writeRun(place.runs, name, { done: 600, ending: "completed" });
  mkdirSync(join(folder, "samples"));
  const metrics = join(folder, "metrics.jsonl");
  const lines = readFileSync(metrics, "utf8").split("\n");
  writeFileSync(metrics, lines.filter((line) => !line.includes('"samples"')).join("\n"));
  for (const step of STEPS) {
    const samples = PROMPTS.map((prompt, number) => {
      const files = [`samples/${step}-${number}.${extension}`];
      writeFileSync(join(folder, files[0]), content(step, number));
      if (extension !== "png") {
        files.push(`samples/${step}-${number}-frames.png`);
        writeFileSync(join(folder, files[1]), png(120, 30, [step / 4, 100, 90]));
      }
      return { prompt, text, files };
    });
    appendFileSync(metrics, `${JSON.stringify({ kind: "samples", step, samples })}\n`);
  }
}

/** A clip of a second, which the browser makes: no other program is needed. */
async function clip() {
  const page = await open(place, "#/");
  const bytes = await page.evaluate(async () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [64, 64];
    const draw = canvas.getContext("2d");
    const recorder = new MediaRecorder(canvas.captureStream(20), { mimeType: "video/webm" });
    /** @type {Blob[]} */
    const parts = [];
    recorder.ondataavailable = (event) => parts.push(event.data);
    const stopped = new Promise((done) => (recorder.onstop = done));
    recorder.start();
    for (let frame = 0; frame < 20; frame += 1) {
      draw.fillStyle = `hsl(${frame * 18} 80% 50%)`;
      draw.fillRect(0, 0, 64, 64);
      await new Promise((done) => setTimeout(done, 50));
    }
    recorder.stop();
    await stopped;
    return [...new Uint8Array(await new Blob(parts).arrayBuffer())];
  });
  await page.context().close();
  return Buffer.from(bytes);
}

before(async () => {
  place = await Place.open();
  for (const [name, blue] of /** @type {[string, number][]} */ ([
    ["pictures", 60],
    ["others", 220],
  ])) {
    writeSamples(name, "png", SETTINGS, (/** @type {number} */ step, /** @type {number} */ number) =>
      png(96, 64, [step / 3, 200 - 90 * number, blue]),
    );
  }
  const made = await clip();
  writeSamples("clips", "webm", "64 × 64 pixels, 20 frames, seed 42, 20 steps, guidance 4", () => made);
});

after(() => place?.close());

const shot = (/** @type {Page} */ page, /** @type {string} */ step, /** @type {string} */ prompt) =>
  page.getByRole("button", { name: `Compare ${step}: ${prompt}` });

test("each prompt has a row with a sample of each step, and its settings", async () => {
  const page = await open(place, "#/run/pictures");
  const rows = page.locator(".row-of-shots");
  await rows.first().waitFor();
  assert.equal(await rows.count(), PROMPTS.length);
  for (const [index, prompt] of PROMPTS.entries()) {
    const row = rows.nth(index);
    assert.equal(await row.locator("h3").textContent(), prompt);
    assert.deepEqual(await row.locator("figcaption b").allTextContents(), ["Before training", "Step 200", "Step 400", "Step 600"]);
    assert.equal(await row.getByText(SETTINGS).count(), STEPS.length);
  }
  await page.getByLabel("Full size").check();
  // As large as it is, and not larger.
  await page.waitForFunction(() => document.querySelector(".shot img")?.getBoundingClientRect().width === 96);
  await page.reload();
  assert.ok(await page.getByLabel("Full size").isChecked());
  await page.getByLabel("Medium").check();
  assert.deepEqual(await serious(page), []);
  assert.deepEqual(page.complaints, []);
  await picture(page, "samples", page.locator("section:has(.shots)"));
  await page.context().close();
});

test("two samples are compared with a slider and by crossfading, with the keyboard", async () => {
  const page = await open(place, "#/run/pictures");
  await shot(page, "Step 400", PROMPTS[0]).press("Enter");
  const dialog = page.getByRole("dialog");
  await dialog.waitFor();
  assert.equal(await dialog.getByLabel("Left sample").locator("option:checked").textContent(), "Before training");
  assert.equal(await dialog.getByLabel("Right sample").locator("option:checked").textContent(), "Step 400");
  const begins = (/** @type {number} */ percent) =>
    page.waitForFunction((percent) => {
      const [, at] = /([\d.]+)%\)$/.exec(getComputedStyle(document.querySelector(".upper")).clipPath) ?? [];
      return Math.abs(Number(at) - percent) < 1;
    }, percent);
  await begins(50);
  const slider = dialog.getByLabel("Where the right sample begins");
  await slider.press("Home");
  await begins(0);
  await slider.press("End");
  await begins(100);
  // With the pointer, too: a quarter from the left.
  const { x, y, width, height } = await dialog.locator(".stage").boundingBox();
  await page.mouse.click(x + width / 4, y + height / 2);
  await begins(25);
  await dialog.getByLabel("Crossfade").check();
  const mixer = dialog.getByLabel("How much of the right sample is seen");
  await mixer.press("End");
  await page.waitForFunction(() => getComputedStyle(document.querySelector(".upper")).opacity === "1");
  await dialog.getByLabel("Side by side").check();
  assert.equal(await dialog.locator("img").count(), 2);
  await dialog.getByRole("button", { name: "Next prompt" }).click();
  await dialog.getByRole("heading", { name: PROMPTS[1] }).waitFor();
  assert.deepEqual(await serious(page), []);
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "detached" });
  assert.equal(await page.evaluate(() => document.activeElement.ariaLabel), `Compare Step 400: ${PROMPTS[0]}`);
  await page.context().close();
});

test("clips play in step, are paused and moved together, and far ones are not loaded", async () => {
  const page = await open(place, "#/run/clips", { viewport: { width: 1280, height: 500 } });
  // A recording has no length before it has played once.
  const times = () => page.evaluate(() => [...document.querySelectorAll(".shots video[src]")].map((clip) => clip.currentTime));
  await page.locator(".shots").scrollIntoViewIfNeeded();
  await page.waitForFunction(() => {
    const clips = [...document.querySelectorAll(".shots video[src]")];
    return clips.length >= 4 && clips.every((clip) => clip.videoWidth === 64 && Number.isFinite(clip.duration));
  });
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByLabel("Position of all clips").fill("0.5");
  await page.waitForFunction(() =>
    [...document.querySelectorAll(".shots video[src]")].every((clip) => clip.paused && Math.abs(clip.currentTime - 0.5) < 0.09),
  );
  await page.getByRole("button", { name: "Play" }).click();
  await page.waitForFunction(() => [...document.querySelectorAll(".shots video[src]")].every((clip) => !clip.paused));
  await page.waitForFunction(() => {
    const clips = [...document.querySelectorAll(".shots video[src]")];
    const apart = (/** @type {HTMLVideoElement} */ one, /** @type {HTMLVideoElement} */ other) => {
      const seconds = Math.abs(one.currentTime - other.currentTime);
      return Math.min(seconds, one.duration - seconds);
    };
    return clips.every((clip) => clip.currentTime !== 0.5 && apart(clip, clips[0]) < 0.2);
  });
  assert.ok((await times()).length >= 4);
  // Out of sight there is nothing to load.
  await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
  await page.waitForFunction(() => document.querySelectorAll(".shots video[src]").length === 0);
  await shot(page, "Before training", PROMPTS[0]).click();
  const dialog = page.getByRole("dialog");
  await page.waitForFunction(() => [...document.querySelectorAll("dialog video")].filter((clip) => clip.videoWidth === 64).length === 2);
  await dialog.locator("summary", { hasText: "Frames" }).first().click();
  await page.waitForFunction(() => document.querySelector(".caption details img")?.naturalWidth === 120);
  assert.deepEqual(await serious(page), []);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("samples of two runs are compared: the newest, those of a step, or all", async () => {
  const page = await open(place, "#/compare?run=pictures&run=others");
  await shot(page, "others, step 600", PROMPTS[1]).click();
  const dialog = page.getByRole("dialog");
  await page.waitForFunction(() => [...document.querySelectorAll("dialog img")].every((image) => image.naturalWidth === 96));
  assert.equal(await dialog.getByLabel("Left sample").locator("option:checked").textContent(), "pictures, step 600");
  await dialog.getByRole("button", { name: "Close" }).click();
  const titles = () => page.locator(".row-of-shots").first().locator("figcaption b").allTextContents();
  await page.getByLabel("Samples of").selectOption("step 200");
  assert.deepEqual(await titles(), ["pictures, step 200", "others, step 200"]);
  await page.getByLabel("Samples of").selectOption("all steps");
  assert.equal((await titles()).length, 2 * STEPS.length);
  assert.deepEqual((await titles()).slice(-2), ["pictures, step 600", "others, step 600"]);
  await page.context().close();
});

test("texts are beside each other", async () => {
  writeRun(place.runs, "words", { done: 400, ending: "completed" });
  const page = await open(place, "#/run/words");
  await shot(page, "Step 400", "To be").click();
  await page.waitForFunction(() => document.querySelectorAll("dialog pre").length === 2);
  assert.deepEqual(await page.locator("dialog pre").allTextContents(), [" or not, at 200", " or not, at 400"]);
  await page.context().close();
});

for (const colorScheme of /** @type {const} */ (["light", "dark"])) {
  test(`samples on a phone, ${colorScheme}: nothing is too wide, and axe-core finds nothing serious`, async () => {
    const page = await open(place, "#/run/pictures", { ...PHONE, colorScheme });
    await page.locator(".shot img").first().waitFor();
    assert.ok((await tooWide(page)) <= 0);
    assert.deepEqual(await serious(page), []);
    await shot(page, "Step 600", PROMPTS[0]).click();
    await page.getByRole("dialog").waitFor();
    assert.ok((await tooWide(page)) <= 0);
    assert.equal(await page.getByRole("dialog").evaluate((box) => box.scrollWidth - box.clientWidth), 0);
    assert.deepEqual(await serious(page), []);
    await page.context().close();
  });
}
