// Four steps to a run, by clicks, with the real trainer and tiny models.
import assert from "node:assert/strict";
import { copyFileSync, cpSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Place, writeRun } from "./place.mjs";
import { open, PHONE, picture, png, serious, tooWide } from "./shared.mjs";

const golden = new URL("../../../../tests/reference/golden/", import.meta.url);

let place;

before(async () => {
  place = await Place.open();
  const at = (...parts) => join(place.folder, ...parts);
  const copy = (from, ...to) => cpSync(new URL(from, golden), at(...to), { recursive: true });
  mkdirSync(at("models/tiny-video"), { recursive: true });
  for (const [part, from] of [
    ["transformer", "wan/training/transformer"],
    ["vae", "wan/autoencoder-2.1"],
    ["text_encoder", "wan/text-encoder"],
    ["tokenizer", "wan/text"],
  ]) {
    copy(from, "models/tiny-video", part);
  }
  writeFileSync(at("models/tiny-video/model_index.json"), '{"_class_name": "WanPipeline"}');
  copy("z_image/model", "models/tiny-image");
  copyFileSync(new URL("models/gemma3.gguf", golden), at("models/tiny-chat.gguf"));
  mkdirSync(at("cats/empty"), { recursive: true });
  for (let cat = 0; cat < 12; cat += 1) {
    writeFileSync(at(`cats/${cat}.png`), png(96, 64, [cat * 20, 200 - cat * 9, 120]));
    if (cat > 2) writeFileSync(at(`cats/${cat}.txt`), "a cat on a mat\n");
  }
  symlinkSync("/etc", at("outside"));
  mkdirSync(at("texts"));
  writeFileSync(at("texts/bottles.txt"), Array.from({ length: 4000 }, (_, n) => `${n} bottles of <b>ale</b>\n`).join(""));
  const talk = (n) => JSON.stringify({ prompt: `What is ${n}?`, completion: ` It is ${n}.` });
  writeFileSync(at("texts/talk.jsonl"), Array.from({ length: 60 }, (_, n) => talk(n)).join("\n"));
  writeRun(place.runs, "yesterday", { ending: "completed" });
});

after(() => place?.close());

const button = (page, name) => page.getByRole("button", { name });
const field = (page, name) => page.locator(".questions").getByLabel(name);

async function enter(page, name, value) {
  await field(page, name).fill(value);
  await field(page, name).press("Tab");
}

/** From the list of runs to the choice of data. */
async function toData(goal, model, options) {
  const page = await open(place, "#/", options);
  await page.getByRole("link", { name: "New run" }).click();
  await button(page, goal).click();
  await button(page, model).click();
  await page.getByRole("heading", { name: "What does it learn from?" }).waitFor();
  await page.locator(".entries button", { hasText: place.folder }).click();
  await button(page, /^texts/).waitFor();
  // What leads out of the folder is not there.
  assert.equal(await button(page, /^outside/).count(), 0);
  return page;
}

/** From the data to a run that has ended, and then an answer of what it made. */
async function finish(page, run, answer) {
  await page.locator(".actions .badge.completed").waitFor();
  await button(page, "Add to the queue").click();
  await page.waitForSelector(`li[aria-label$="${run}, completed"]`, { timeout: 240_000 });
  await page.locator("li.job").getByRole("link", { name: run, exact: true }).click();
  await page.locator("form.ask textarea").fill("what is new");
  for (const [name, value] of Object.entries(answer.settings)) await page.locator("form.ask").getByLabel(name).fill(value);
  await button(page, "Generate").click();
  await page.locator(answer.made).first().waitFor();
  assert.deepEqual(page.complaints, []);
  await page.context().close();
}

const TEXT = { settings: { "Max. new tokens": "8", Temperature: "0" }, made: ".answer pre" };
const PICTURE = { settings: { Steps: "2", Size: "64" }, made: ".answer img" };

test("a small model of texts is trained from nothing", async () => {
  const page = await toData(/^Text/, /^A small model from nothing/);
  await button(page, /^texts/).click();
  await button(page, /^bottles\.txt/).click();
  await page.locator(".rows mark").first().waitFor();
  await button(page, "Continue").click();
  await enter(page, /^Name/, "bottles");
  for (const [name, value] of [
    [/^Steps/, "61"],
    [/^Width of the model/, "32"],
    [/^Length in tokens/, "16"],
    [/^Texts per step/, "2"],
  ]) {
    await enter(page, name, value);
  }
  await finish(page, "bottles", TEXT);
  assert.match(readFileSync(join(place.runs, "bottles/config.yaml"), "utf8"), /hidden_size: 32/);
  assert.ok(existsSync(join(place.runs, "bottles/model")));
});

test("a LoRA for a chat is trained, after its estimate", async () => {
  const page = await toData(/^Chat/, /^tiny-chat/);
  await button(page, /^texts/).click();
  await button(page, /^talk\.jsonl/).click();
  await page.locator(".rows mark").first().waitFor();
  await button(page, "Continue").click();
  await enter(page, /^Name/, "talk");
  await enter(page, /^Steps/, "3");
  await button(page, "Dry run").click();
  await page.getByRole("heading", { name: "Dry run" }).waitFor();
  await page.getByText("trainable parameters").waitFor();
  await finish(page, "talk", TEXT);
  assert.ok(existsSync(join(place.runs, "talk/adapter")));
});

for (const [goal, model, run, more] of [
  [/^Pictures/, /^tiny-image/, "cats", {}],
  [/^Videos/, /^tiny-video/, "clips", { "Frames per clip": "[1, 5]" }],
]) {
  test(`a LoRA of ${run} is set up, and its data are shown before`, async () => {
    const page = await toData(goal, model);
    await button(page, /^cats/).click();
    if (run === "cats") await page.getByText("3 of 12 have no caption").waitFor();
    await button(page, /^empty/).click();
    await page.getByText(/There are no (pictures|videos) here/).waitFor();
    assert.ok(await button(page, "Use this folder").isDisabled());
    await button(page, "Up").click();
    await page.getByText("12 pictures, 9 with captions").waitFor();
    await button(page, "Use this folder").click();
    await page.waitForFunction(() => document.querySelector(".media img")?.naturalWidth === 96);
    assert.deepEqual(await serious(page), []);
    if (run === "cats") await picture(page, "new-data", page.locator("main"), 750);
    await button(page, "Continue").click();
    for (const [name, value] of Object.entries({ Name: run, Steps: "2", Size: "64", "Prompts for samples": "", ...more })) {
      await enter(page, new RegExp(`^${name}`), value);
    }
    if (run === "cats") {
      await finish(page, run, PICTURE);
      assert.ok(existsSync(join(place.runs, run, "adapter")));
      return;
    }
    // The vocabularies of the tiny tokenizer and text encoder differ, so it is not trained.
    await page.locator(".actions .badge.completed").waitFor();
    await page.locator("summary", { hasText: "All keys and YAML" }).click();
    const text = await page.getByRole("textbox", { name: "Config", exact: true }).inputValue();
    for (const line of ["name: clips", "resolution: 64", "num_frames: [1, 5]", `path: ${join(place.folder, "cats")}`]) {
      assert.ok(text.includes(line), text);
    }
    await page.context().close();
  });
}

test("a model that is not here is downloaded by the run, and nothing before", async () => {
  const page = await open(place, "#/new");
  await button(page, /^Videos/).click();
  const asked = [];
  page.on("request", (request) => asked.push(new URL(request.url()).pathname));
  await page.locator(".card.absent").first().click();
  await page.locator(".entries button", { hasText: place.folder }).click();
  await button(page, /^cats/).click();
  await button(page, "Use this folder").click();
  await page.getByText("once the model is on this machine").waitFor();
  await button(page, "Continue").click();
  await page.locator(".actions .badge.completed").waitFor();
  assert.ok(await button(page, "Dry run").isDisabled());
  assert.ok(await button(page, "Show the data").isDisabled());
  assert.ok(asked.includes("/api/check") && !asked.includes("/api/data") && !asked.includes("/api/dry-run"), asked.join(" "));
  await page.context().close();
});

test("the eight keys, the form and the text are one config, and a mistake is always in sight", async () => {
  const page = await open(place, "#/new");
  await button(page, /^small/).click();
  await field(page, /^Steps/).waitFor();
  assert.equal(await page.locator(".questions .entry").count(), 8);
  await enter(page, /^Steps/, "77");
  await page.locator("summary", { hasText: "All keys and YAML" }).click();
  const text = page.getByRole("textbox", { name: "Config", exact: true });
  assert.match(await text.inputValue(), /max_steps: 77\n/);
  await text.fill((await text.inputValue()).replace("max_steps: 77", "max_steps: 78"));
  assert.equal(await field(page, /^Steps/).inputValue(), "78");
  await enter(page, /^Learning rate/, "20");
  await page.locator(".actions .badge.failed").waitFor();
  assert.equal(await field(page, /^Learning rate/).getAttribute("aria-invalid"), "true");
  assert.ok(await button(page, "Add to the queue").isDisabled());
  await page.evaluate(() => scrollTo(0, 0));
  const { y, height } = await page.locator(".actions").boundingBox();
  assert.ok(y >= 0 && y + height <= 900, `${y}`);
  await page.context().close();
});

test("a key is found by the words that people use", async () => {
  const page = await open(place, "#/new?whole");
  const form = page.getByRole("region", { name: "Form" });
  for (const [words, key] of [
    ["rank", "r"],
    ["batch size", "per_device_train_batch_size"],
    ["epochs", "num_train_epochs"],
    ["LR", "learning_rate"],
  ]) {
    await form.getByLabel("Find a key").fill(words);
    await form.getByLabel(key, { exact: true }).waitFor();
  }
  await form.getByLabel("Find a key").fill("no such key");
  await page.waitForFunction(() => document.querySelectorAll(".form .entry").length === 0);
  await page.context().close();
});

test("templates, earlier runs and the last config are where to begin", async () => {
  const page = await open(place, "#/new");
  await button(page, /^z-image/).click();
  assert.equal(await field(page, /^LoRA rank/).inputValue(), "32");
  await page.getByRole("textbox", { name: /^Trigger word/ }).fill("zwx");
  await page.getByRole("textbox", { name: /^Trigger word/ }).press("Tab");
  await page.reload();
  await button(page, /^Your last config/).click();
  assert.equal(await field(page, /^Trigger word/).inputValue(), "zwx");
  await page.goto(`http://127.0.0.1:${place.port}/#/queue`);
  await page.getByRole("link", { name: "New run" }).click();
  await page.getByRole("link", { name: /^yesterday/ }).click();
  await page.getByRole("heading", { name: "Duplicate yesterday" }).waitFor();
  await page.context().close();
});

for (const colorScheme of ["light", "dark"]) {
  test(`four steps on a phone, ${colorScheme}: nothing is too wide, and axe-core finds nothing serious`, async () => {
    const page = await open(place, "#/new", { ...PHONE, colorScheme });
    const look = async () => {
      assert.ok((await tooWide(page)) <= 0);
      assert.deepEqual(await serious(page), []);
    };
    await button(page, /^Videos/).waitFor();
    await look();
    await button(page, /^Videos/).click();
    await button(page, /^tiny-video/).waitFor();
    await look();
    await button(page, /^tiny-video/).click();
    await page.locator(".entries button", { hasText: place.folder }).click();
    await button(page, /^cats/).click();
    await button(page, "Use this folder").click();
    await page.locator(".media img").first().waitFor();
    await look();
    await button(page, "Continue").click();
    await page.locator(".actions .badge.completed").waitFor();
    await look();
    await page.context().close();
  });
}
