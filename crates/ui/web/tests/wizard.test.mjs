// Four steps to a run, by clicks, with the real trainer and tiny models.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { copyFileSync, cpSync, existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { Place, writeRun } from "./place.mjs";
import { open, PHONE, picture, png, serious, tooWide } from "./shared.mjs";

const golden = new URL("../../../../tests/reference/golden/", import.meta.url);

/** The file of a tokenizer with as many tokens as the tiny text encoder knows. */
const TOKENIZER = {
  version: "1.0",
  added_tokens: ["<pad>", "</s>", "<unk>"].map((content, id) => ({
    id,
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: true,
  })),
  pre_tokenizer: { type: "Metaspace", replacement: "▁", prepend_scheme: "always", split: true },
  post_processor: {
    type: "TemplateProcessing",
    single: [{ Sequence: { id: "A", type_id: 0 } }, { SpecialToken: { id: "</s>", type_id: 0 } }],
    pair: [{ Sequence: { id: "A", type_id: 0 } }, { Sequence: { id: "B", type_id: 0 } }],
    special_tokens: { "</s>": { id: "</s>", ids: [1], tokens: ["</s>"] } },
  },
  model: {
    type: "Unigram",
    unk_id: 2,
    byte_fallback: false,
    vocab: ["<pad>", "</s>", "<unk>", "▁", "▁a", "▁cat", "▁dog", "▁run", "s", "▁grey"].map((token, id) => [token, -id / 5]),
  },
};
const SCHEDULER = {
  _class_name: "UniPCMultistepScheduler",
  flow_shift: 3,
  use_flow_sigmas: true,
  prediction_type: "flow_prediction",
};

/** A film of a second, as ffmpeg makes it. */
function film(/** @type {string} */ path, /** @type {number} */ level) {
  const colour = `color=c=0x${(level * 40).toString(16).padStart(2, "0")}4060:size=64x64:rate=16:duration=1`;
  const made = spawnSync("ffmpeg", ["-v", "error", "-f", "lavfi", "-i", colour, "-c:v", "libvpx", "-y", path]);
  assert.equal(made.status, 0, String(made.stderr));
}

/** @import { Page } from "playwright-core" */

/** @type {Place} */
let place;

before(async () => {
  place = await Place.open();
  const at = (/** @type {string[]} */ ...parts) => join(place.folder, /** @type {string[]} */ ...parts);
  const copy = (/** @type {string} */ from, /** @type {string[]} */ ...to) =>
    cpSync(new URL(from, golden), at(/** @type {string[]} */ ...to), { recursive: true });
  mkdirSync(at("models/tiny-video"), { recursive: true });
  for (const [part, from] of [
    ["transformer", "wan/training/transformer"],
    ["vae", "wan/autoencoder-2.1"],
    ["text_encoder", "wan/text-encoder"],
  ]) {
    copy(from, "models/tiny-video", part);
  }
  for (const [name, content] of /** @type {[string, object][]} */ ([
    ["tokenizer/tokenizer.json", TOKENIZER],
    ["scheduler/scheduler_config.json", SCHEDULER],
  ])) {
    mkdirSync(dirname(at("models/tiny-video", name)), { recursive: true });
    writeFileSync(at("models/tiny-video", name), JSON.stringify(content));
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
  mkdirSync(at("clips"));
  for (let number = 0; number < 5; number += 1) {
    film(at(`clips/${number}.webm`), number);
    writeFileSync(at(`clips/${number}.txt`), "a cat runs\n");
  }
  mkdirSync(at("texts"));
  writeFileSync(at("texts/bottles.txt"), Array.from({ length: 4000 }, (_, n) => `${n} bottles of <b>ale</b>\n`).join(""));
  const talk = (/** @type {number} */ n) => JSON.stringify({ prompt: `What is ${n}?`, completion: ` It is ${n}.` });
  writeFileSync(at("texts/talk.jsonl"), Array.from({ length: 60 }, (_, n) => talk(n)).join("\n"));
  writeRun(place.runs, "yesterday", { ending: "completed" });
});

after(() => place?.close());

const button = (/** @type {Page} */ page, /** @type {string | RegExp} */ name) => page.getByRole("button", { name });
const field = (/** @type {Page} */ page, /** @type {string | RegExp} */ name) => page.locator(".questions").getByLabel(name);

async function enter(/** @type {Page} */ page, /** @type {string | RegExp} */ name, /** @type {string} */ value) {
  await field(page, name).fill(value);
  await field(page, name).press("Tab");
}

/** From the list of runs to the choice of data. */
async function toData(
  /** @type {RegExp} */ goal,
  /** @type {RegExp} */ model,
  /** @type {import("playwright-core").BrowserContextOptions} */ options = {},
) {
  const page = await open(place, "#/", options);
  await page.getByRole("link", { name: "New run" }).click();
  await button(page, goal).click();
  await button(page, model).click();
  await page.getByRole("heading", { name: "What does it learn from?" }).waitFor();
  await button(page, /^texts/).waitFor();
  // What leads out of the folder is not there.
  assert.equal(await button(page, /^outside/).count(), 0);
  return page;
}

/** From the data to a run that has ended, and then an answer of what it made. */
async function finish(
  /** @type {import("./place.mjs").TestPage} */ page,
  /** @type {string} */ run,
  /** @type {{ settings: Record<string, string>, made: string, checkpoint?: string, goesOn?: boolean, result?: string }} */ answer,
) {
  await page.locator(".actions .badge.completed").waitFor();
  await button(page, "Add to the queue").click();
  await page.waitForSelector(`li[aria-label$="${run}, completed"]`, { timeout: 600_000 });
  await page.locator("li.job").getByRole("link", { name: run, exact: true }).click();
  if (answer.result) await page.getByText("What it learned:").getByText(answer.result).waitFor();
  await page.locator("form.ask textarea").fill("what is new");
  for (const [name, value] of Object.entries(answer.settings)) await page.locator("form.ask").getByLabel(name).fill(value);
  const ask = async (/** @type {string} */ title) => {
    await button(page, /^(Generate|Send)$/).click();
    await page.locator("figcaption", { hasText: title }).waitFor();
    await page.locator("form.ask").getByRole("button", { name: "Stop" }).and(page.locator(":disabled")).waitFor();
    assert.equal(await page.locator(answer.made).count(), 1);
  };
  await ask("seed");
  if (answer.checkpoint) {
    await page.locator("form.ask").getByLabel("Checkpoint").selectOption(answer.checkpoint);
    await ask(`${answer.checkpoint}, seed`);
  }
  if (answer.goesOn) {
    await page.getByLabel("Go on").fill("and then");
    await page.getByLabel("Go on").press("Enter");
    await page.locator(".asked", { hasText: "and then" }).waitFor();
    await page.locator(answer.made).nth(1).waitFor();
    await button(page, "New chat").click();
    assert.equal(await page.locator(answer.made).count(), 0);
  }
  assert.deepEqual(page.complaints, []);
  await page.context().close();
}

/** Makes a folder beside others and puts the files of one of these into it, as they would be chosen in a dialog. */
async function bring(/** @type {Page} */ page, /** @type {string} */ name, /** @type {string} */ from) {
  await button(page, "New folder").click();
  await page.getByLabel("Name of the new folder").fill(name);
  await button(page, "Make").click();
  await page.locator(".picker .path", { hasText: join(place.folder, name) }).waitFor();
  await page.getByText("Nothing to train on here.").waitFor();
  const files = readdirSync(join(place.folder, from)).filter((file) => file.includes("."));
  await page.getByLabel("Files to add").setInputFiles(files.map((file) => join(place.folder, from, file)));
  await page.getByText("Nothing to train on here.").waitFor({ state: "detached" });
}

const TEXT = { settings: { "Max. new tokens": "8", Temperature: "0" }, made: ".answer pre" };
const PICTURE = { settings: { Steps: "2", Size: "64", Strength: "0.8" }, made: ".answer img", checkpoint: "step 2" };
const FILM = { settings: { Steps: "2", Size: "64", Frames: "5" }, made: ".answer img", checkpoint: "step 2" };

test("a small model of texts is trained from nothing", async () => {
  const page = await toData(/^Text/, /^A small model from nothing/);
  await bring(page, "my texts", "texts");
  await button(page, /^bottles\.txt/).click();
  await page.locator(".rows mark").first().waitFor();
  await button(page, "Continue").click();
  await enter(page, /^Name/, "bottles");
  for (const [name, value] of /** @type {[RegExp, string][]} */ ([
    [/^Steps/, "61"],
    [/^Width of the model/, "32"],
    [/^Length in tokens/, "16"],
    [/^Texts per step/, "2"],
  ])) {
    await enter(page, name, value);
  }
  await finish(page, "bottles", { ...TEXT, checkpoint: "step 61" });
  assert.match(readFileSync(join(place.runs, "bottles/config.yaml"), "utf8"), /hidden_size: 32/);
  assert.ok(existsSync(join(place.runs, "bottles/model")));
});

test("a LoRA for a chat is trained, after its estimate", async () => {
  const page = await toData(/^Chat/, /^tiny-chat/);
  await bring(page, "my talk", "texts");
  await button(page, /^talk\.jsonl/).click();
  await page.locator(".rows mark").first().waitFor();
  await button(page, "Continue").click();
  await enter(page, /^Name/, "talk");
  await enter(page, /^Steps/, "3");
  await button(page, "Estimate memory and time").click();
  await page.getByRole("heading", { name: "Memory and time" }).waitFor();
  await page.getByText("trainable parameters").waitFor();
  await finish(page, "talk", { ...TEXT, goesOn: true });
  assert.ok(existsSync(join(place.runs, "talk/adapter")));
});

test("a LoRA of pictures is trained from a folder that was empty, and its data are shown before", async () => {
  const page = await toData(/^Pictures/, /^tiny-image/);
  await button(page, /^cats/).click();
  await page.getByText("3 of 12 have no caption").waitFor();
  await button(page, /^empty/).click();
  await page.getByText("There are no pictures here").waitFor();
  assert.ok(await button(page, "Use this folder").isDisabled());
  await button(page, "Up").click();
  await button(page, "Up").click();
  await bring(page, "my cats", "cats");
  await page.getByText("12 pictures, 9 with captions").waitFor();
  // Before it is chosen, and as people count: 2.png before 10.png.
  await page.waitForFunction(() => document.querySelectorAll(".glimpse img").length === 12);
  const names = (/** @type {string} */ selector) =>
    page.locator(selector).evaluateAll((all) => all.map((each) => each.textContent || each.getAttribute("title")));
  const counted = Array.from({ length: 12 }, (_, cat) => `${cat}.png`);
  assert.deepEqual(await names(".glimpse img"), counted);
  await page.waitForFunction(() => document.querySelector(".glimpse img").naturalWidth > 0);
  await button(page, "Use this folder").click();
  await page.waitForFunction(() => document.querySelector(".media img")?.naturalWidth === 96);
  assert.deepEqual(await names(".media .file"), counted);
  assert.deepEqual(await serious(page), []);
  await picture(page, "new-data", page.locator("main"), 750);
  await button(page, "Continue").click();
  assert.equal(await field(page, /^Name/).inputValue(), "my-cats");
  for (const [name, value] of Object.entries({ Name: "cats", Steps: "2", Size: "64", "Prompts for samples": "" })) {
    await enter(page, new RegExp(`^${name}`), value);
  }
  await finish(page, "cats", { ...PICTURE, result: "runs/cats/adapter" });
  assert.ok(existsSync(join(place.runs, "cats/adapter")));
  assert.match(readFileSync(join(place.runs, "cats/output.log"), "utf8"), /: \d+ pictures to train on, /);
});

test("a LoRA of videos is trained from a folder that was empty", async () => {
  const page = await toData(/^Videos/, /^tiny-video/);
  await bring(page, "my clips", "clips");
  await page.getByText("5 videos, 5 with captions").waitFor();
  await button(page, "Use this folder").click();
  await page.locator(".media video").first().waitFor();
  await button(page, "Continue").click();
  const settings = { Name: "clips", Steps: "2", Size: "64", "Frames per clip": "[1, 5]", "Prompts for samples": "" };
  for (const [name, value] of Object.entries(settings)) await enter(page, new RegExp(`^${name}`), value);
  await finish(page, "clips", FILM);
  assert.ok(existsSync(join(place.runs, "clips/adapter")));
});

test("four steps with the keyboard alone", async () => {
  const page = await open(place, "#/");
  const reach = async (/** @type {import("playwright-core").Locator} */ target) => {
    await target.waitFor();
    for (let count = 0; count < 80; count += 1) {
      if (await target.evaluate((element) => element === document.activeElement)) return;
      await page.keyboard.press("Tab");
    }
    assert.fail(`${target} is not reached`);
  };
  const press = async (/** @type {import("playwright-core").Locator} */ target) => {
    await reach(target);
    await page.keyboard.press("Enter");
  };
  const focused = (/** @type {string} */ text) => page.waitForFunction((text) => document.activeElement.textContent === text, text);
  await press(page.getByRole("link", { name: "New run" }));
  await press(button(page, /^Text/));
  await button(page, /^A small model from nothing/).waitFor();
  await focused("Which model learns it?");
  await press(button(page, /^A small model from nothing/));
  await press(button(page, /^texts/));
  await press(button(page, /^bottles\.txt/));
  await press(button(page, "Continue"));
  await focused("How is it trained?");
  for (const [name, value] of /** @type {[RegExp, string][]} */ ([
    [/^Name/, "keys"],
    [/^Steps/, "61"],
    [/^Width of the model/, "32"],
    [/^Length in tokens/, "16"],
  ])) {
    await reach(field(page, name));
    await page.keyboard.press("Control+A");
    await page.keyboard.type(value);
  }
  await page.keyboard.press("Tab");
  await page.locator(".actions .badge.completed").waitFor();
  await press(button(page, "Add to the queue"));
  await page.waitForSelector('li[aria-label$="keys, completed"]', { timeout: 600_000 });
  await press(page.getByRole("link", { name: "Open keys" }));
  await page.getByRole("heading", { name: "keys" }).waitFor();
  await page.context().close();
});

test("whoever writes captions on the way comes back to what was chosen", async () => {
  const page = await toData(/^Pictures/, /^tiny-image/);
  await button(page, /^cats/).click();
  await page.getByRole("link", { name: "Write captions" }).click();
  await page.locator(".cell img").first().waitFor();
  await page.getByRole("link", { name: "New run with this" }).click();
  await page.getByRole("heading", { name: "What does it learn from?" }).waitFor();
  await button(page, "Continue").click();
  await page.locator("summary", { hasText: "All keys and YAML" }).click();
  const text = await page.getByRole("textbox", { name: "Config", exact: true }).inputValue();
  assert.match(text, /name_or_path: .*tiny-image\n/);
  assert.match(text, /path: .*cats\n/);
  // Later, a new run begins at its beginning.
  await page.goto(`http://127.0.0.1:${place.port}/#/`);
  await page.getByRole("link", { name: "New run" }).first().click();
  await page.getByRole("heading", { name: "What do you want to teach?" }).waitFor();
  await page.context().close();
});

test("whether a model fits is measured while the page goes on", async () => {
  const page = await open(place, "#/new");
  let asked = 0;
  await page.route("**/api/fits", async (route) => {
    asked += 1;
    await new Promise((done) => setTimeout(done, 300));
    await route.continue();
  });
  await button(page, /^Pictures/).click();
  const card = button(page, /^tiny-image/);
  await card.getByText("Measuring whether it fits …").waitFor();
  assert.ok(await card.isEnabled());
  await card.getByText(/^fits: [\d.]+ (M|G|K)iB of [\d.]+ GiB$/).waitFor();
  assert.ok(asked >= 1);
  // Once more, from what is kept.
  await page.reload();
  await button(page, /^Pictures/).click();
  await card.getByText(/^fits: /).waitFor();
  assert.equal(readdirSync(join(place.folder, "cache/fits")).length >= 1, true);
  await page.context().close();
});

test("the best way that fits is what the config begins with, and what fits in none is said", async () => {
  const page = await open(place, "#/new");
  const GIB = 2 ** 30;
  const way = (
    /** @type {string | null} */ quantization,
    /** @type {boolean} */ offload,
    /** @type {number} */ need,
    /** @type {boolean} */ fits,
  ) => ({ quantization, offload, need: need * GIB, fits });
  let ways = [way(null, false, 20, false), way("int8", false, 11, true)];
  await page.route("**/api/fits", (route) =>
    route.fulfill({ json: { found: ways && { device: "GPU", memory: 16 * GIB, ways }, error: ways ? null : "no such thing" } }),
  );
  const told = async (/** @type {string | RegExp} */ text) => {
    await page.goto(`http://127.0.0.1:${place.port}/#/`);
    await page.goto(`http://127.0.0.1:${place.port}/#/new`);
    await button(page, /^Pictures/).click();
    await button(page, /^tiny-image/)
      .getByText(text)
      .waitFor();
  };
  const begun = async () => {
    await button(page, /^tiny-image/).click();
    return page.evaluate(() => localStorage.getItem("draft"));
  };
  await told("fits in 8 bits: 11 GiB of 16 GiB");
  assert.match(await begun(), /quantization: int8/);
  ways = [way(null, false, 40, false), way("nf4", true, 9, true)];
  await told("streamed in 4 bits, slower: 9 GiB of 16 GiB");
  assert.match(await begun(), /offload: auto/);
  ways = [way(null, false, 40, false), way("nf4", false, 20, false)];
  await told("too large: needs 20 GiB of 16 GiB");
  ways = null;
  await told("no such thing");
  await page.context().close();
});

test("a model that is not here is downloaded by the run, and nothing before", async () => {
  const page = await open(place, "#/new");
  await button(page, /^Videos/).click();
  /** @type {string[]} */
  const asked = [];
  page.on("request", (request) => asked.push(new URL(request.url()).pathname));
  await page.locator(".card.absent").first().click();
  await button(page, /^cats/).click();
  await button(page, "Use this folder").click();
  await page.getByText("once the model is on this machine").waitFor();
  await button(page, "Continue").click();
  await page.locator(".actions .badge.completed").waitFor();
  assert.ok(await button(page, "Estimate memory and time").isDisabled());
  assert.ok(await button(page, "Show the data").isDisabled());
  assert.ok(asked.includes("/api/check") && !asked.includes("/api/data") && !asked.includes("/api/dry-run"), asked.join(" "));
  await page.context().close();
});

test("models to download are offered for a chat, too, and pictures in the folders below count", async () => {
  const page = await open(place, "#/new");
  await button(page, /^Chat/).click();
  await page.locator(".card.absent").first().waitFor();
  await page.goto(`http://127.0.0.1:${place.port}/#/data`);
  // Other tests put files there, too.
  await page.getByText(/[1-9]\d* pictures, [1-9]\d* videos, [1-9]\d* with captions, in the folders below\./).waitFor();
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

for (const colorScheme of /** @type {const} */ (["light", "dark"])) {
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
