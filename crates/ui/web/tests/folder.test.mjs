// Data that no run has yet: a folder of pictures, its captions, and texts.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { copyFileSync, cpSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Place } from "./place.mjs";
import { open, PHONE, picture, png, serious, tooWide } from "./shared.mjs";

const golden = new URL("../../../../tests/reference/golden/", import.meta.url);
const MANY = 400;

/** @import { Page } from "playwright-core" */

/** @type {Place} */
let place;

/** A picture of 36 blocks that is another for each seed, and the same at each size. */
const blocks = (/** @type {number} */ seed, size = 96) => {
  const block = (/** @type {number} */ at) => Math.floor((at * 6) / size);
  const value = (/** @type {number} */ x, /** @type {number} */ y) =>
    Math.floor(Math.abs(Math.sin(x * 12.9 + y * 78.2 + seed * 37.7) * 43758) % 255);
  return png(size, size, [(seed * 53) % 255, 0, 90], (x, y) => value(block(x), block(y)));
};
/** One without any edge. */
const flat = () => png(96, 96, [90, 120, 150], () => 128);

before(async () => {
  place = await Place.open();
  const at = (/** @type {string[]} */ ...parts) => join(place.folder, ...parts);
  mkdirSync(at("cats/film"), { recursive: true });
  for (let cat = 0; cat < 12; cat += 1) {
    writeFileSync(at(`cats/${String(cat).padStart(2, "0")}.png`), blocks(cat));
    if (cat > 2) writeFileSync(at(`cats/${String(cat).padStart(2, "0")}.txt`), `a cat, ${cat % 2 ? "indoors" : "in the <b>garden</b>"}\n`);
  }
  writeFileSync(at("cats/again.png"), blocks(4, 192));
  writeFileSync(at("cats/fog.png"), flat());
  writeFileSync(at("cats/broken.png"), "no picture");
  mkdirSync(at("many"));
  for (let cat = 0; cat < MANY; cat += 1) writeFileSync(at(`many/${String(cat).padStart(4, "0")}.png`), blocks(cat % 50, 48));
  mkdirSync(at("texts"));
  const talk = (/** @type {number} */ n) => JSON.stringify({ prompt: `What is ${n}?`, completion: ` It is ${"very ".repeat(n)}${n}.` });
  writeFileSync(at("texts/talk.jsonl"), Array.from({ length: 60 }, (_, n) => talk(n)).join("\n"));
  mkdirSync(at("models"));
  copyFileSync(new URL("models/gemma3.gguf", golden), at("models/tiny-chat.gguf"));
  cpSync(new URL("z_image/model", golden), at("models/tiny-image"), { recursive: true });
});

after(() => place?.close());

const button = (/** @type {Page} */ page, /** @type {string | RegExp} */ name) => page.getByRole("button", { name });
const cell = (/** @type {Page} */ page, /** @type {string} */ name) => page.locator(".cell", { has: page.locator(`b:text-is("${name}")`) });
const data = (/** @type {string} */ name) => `#/data?path=${encodeURIComponent(join(place.folder, name))}`;
const text = (/** @type {string} */ name) => readFileSync(join(place.folder, "cats", name), "utf8");

async function done(/** @type {import("./place.mjs").TestPage} */ page) {
  assert.deepEqual(page.complaints, []);
  await page.context().close();
}

test("a folder is opened by clicks, and shows what is in it", async () => {
  const page = await open(place, "#/");
  await page.getByRole("link", { name: "Data" }).click();
  await button(page, /^cats/).click();
  await button(page, "Open this folder").click();
  await page.getByText("15 pictures, 6 without a caption.").waitFor();
  assert.match(await cell(page, "04.png").textContent(), /96 × 96.*a cat, in the <b>garden<\/b>/);
  assert.equal(await page.locator(".cell .said b").count(), 0);
  await page.waitForFunction(() => [...document.querySelectorAll(".cell img")].filter((each) => each.naturalWidth > 0).length >= 14);
  await page.getByLabel("Show").selectOption("bare");
  await page.waitForFunction(() => document.querySelectorAll(".cell").length === 6);
  // A run begins with it.
  await page.getByRole("link", { name: "New run with this" }).click();
  await button(page, /^Pictures/).click();
  await button(page, /^tiny-image/).click();
  await page.getByText(`${place.folder}/cats`).last().waitFor();
  assert.ok(await button(page, "Continue").isEnabled());
  await page.context().close();
});

test("pictures that are blurred, there twice or broken are found", async () => {
  const page = await open(place, data("cats"));
  await button(page, "Find blurred and double ones").click();
  await cell(page, "again.png").getByText("looks like another").waitFor();
  await cell(page, "04.png").getByText("looks like another").waitFor();
  await cell(page, "fog.png").getByText("maybe blurred").waitFor();
  await cell(page, "broken.png").getByText("cannot be used").waitFor();
  assert.equal(await cell(page, "05.png").locator(".badge").count(), 0);
  await page.getByLabel("Show").selectOption("twice");
  await page.waitForFunction(() => document.querySelectorAll(".cell").length === 2);
  await button(page, /^again\.png/).click();
  await page.getByRole("dialog").getByRole("button", { name: "04.png" }).click();
  await page.getByRole("dialog", { name: "04.png" }).waitFor();
  await page.context().close();
});

test("a caption is written with the keyboard alone, and undone", async () => {
  const page = await open(place, data("cats"));
  const cells = page.locator(".cell .open");
  await cells.first().focus();
  await page.keyboard.press("ArrowRight");
  await page.waitForFunction(() => document.activeElement?.ariaLabel?.startsWith("01.png"));
  await page.keyboard.press("Enter");
  const dialog = page.getByRole("dialog", { name: "01.png" });
  await dialog.getByLabel("Caption").focus();
  await page.keyboard.type("a <i>black</i> cat");
  await page.keyboard.press("Control+Enter");
  await page.getByRole("dialog", { name: "02.png" }).waitFor();
  assert.equal(text("01.txt"), "a <i>black</i> cat\n");
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  assert.match(await cell(page, "01.png").textContent(), /a <i>black<\/i> cat/);
  await button(page, /^Undo: caption of 01\.png/).press("Enter");
  await cell(page, "01.png").getByText("no caption").waitFor();
  assert.ok(!existsSync(join(place.folder, "cats/01.txt")));
  await done(page);
});

test("a caption that somebody else changed stays as it is", async () => {
  const page = await open(place, data("cats"));
  await button(page, /^03\.png/).click();
  writeFileSync(join(place.folder, "cats/03.txt"), "by somebody else\n");
  await page.getByRole("dialog").getByLabel("Caption").fill("mine");
  await button(page, "Save caption").click();
  await page.getByRole("dialog").getByText("changed meanwhile").waitFor();
  assert.equal(text("03.txt"), "by somebody else\n");
  writeFileSync(join(place.folder, "cats/03.txt"), "a cat, indoors\n");
  await page.context().close();
});

test("a video is trimmed to a part, which is played, kept beside it and undone", async () => {
  const folder = join(place.folder, "films");
  mkdirSync(folder);
  const made = spawnSync("ffmpeg", [
    ...["-v", "error", "-f", "lavfi", "-i", "testsrc=size=96x64:rate=16:duration=4"],
    ...["-c:v", "libvpx", join(folder, "film.webm")],
  ]);
  assert.equal(made.status, 0, String(made.stderr));
  const file = join(folder, "film.trim.json");
  const page = await open(place, data("films"));
  await button(page, /^film\.webm/).click();
  const dialog = page.getByRole("dialog", { name: "film.webm" });
  await dialog.getByText("All of it is trained on.").waitFor();
  await page.waitForFunction(() => document.querySelector("dialog video")?.readyState > 0);
  await dialog.getByLabel("Begin").fill("1.25");
  await page.keyboard.press("Tab");
  await dialog.getByText("Trained on from 1.25 s to its end.").waitFor();
  await page.evaluate(() => {
    document.querySelector("dialog video").currentTime = 2.5;
  });
  await page.waitForFunction(() => document.querySelector("dialog video").currentTime === 2.5);
  await dialog.getByRole("button", { name: "End here" }).press("Enter");
  await dialog.getByText("Trained on from 1.25 s to 2.5 s.").waitFor();
  assert.deepEqual(JSON.parse(readFileSync(file, "utf8")), { start: 1.25, end: 2.5 });
  // What is played is the part.
  await page.evaluate(() => document.querySelector("dialog video").play());
  await page.waitForFunction(() => {
    const { currentTime } = document.querySelector("dialog video");
    return currentTime >= 1.2 && currentTime < 2.4;
  });
  assert.deepEqual(await serious(page), []);
  await picture(page, "trim", dialog);
  await dialog.getByRole("button", { name: "Close" }).click();
  await cell(page, "film.webm").getByText("trimmed").waitFor();
  await button(page, "Undo: part of film.webm").click();
  await page.waitForFunction(() => document.querySelector(".actions")?.textContent.includes("Undo: part of film.webm"));
  await page.waitForFunction(() => !document.querySelector(".busy"));
  await button(page, "Undo: part of film.webm").click();
  await cell(page, "film.webm").getByText("trimmed").waitFor({ state: "detached" });
  assert.ok(!existsSync(file));
  await done(page);
});

test("captions are changed together, by tags too, and undone in turn", async () => {
  const page = await open(place, data("cats"));
  const before = text("05.txt");
  const panel = page.locator("details", { hasText: "Change captions" });
  await panel.locator("summary").click();
  await panel.getByLabel("Text").fill("ohwx, ");
  await button(page, "Change 15 captions").click();
  await cell(page, "05.png").getByText("ohwx, a cat, indoors").waitFor();
  assert.equal(text("05.txt"), "ohwx, a cat, indoors\n");
  assert.equal(text("00.txt"), "ohwx,\n");
  // A tag of those that were chosen.
  await cell(page, "05.png").getByRole("checkbox").check();
  await cell(page, "07.png").getByRole("checkbox").check();
  await panel.getByText("2 chosen").waitFor();
  await button(page, "Remove the tag indoors").click();
  await button(page, "Change 2 captions").click();
  await cell(page, "07.png").getByText("ohwx, a cat", { exact: true }).waitFor();
  assert.equal(text("09.txt"), "ohwx, a cat, indoors\n");
  await panel.getByLabel("How").selectOption("replace");
  await panel.getByLabel("What").fill("a cat");
  await panel.getByLabel("By").fill("a dog");
  await panel.getByText("ohwx, a dog").waitFor();
  await button(page, "Change 2 captions").click();
  await cell(page, "05.png").getByText("ohwx, a dog").waitFor();
  for (const name of [/^Undo: replace/, /^Undo: remove a tag/, /^Undo: put in front/]) {
    await button(page, name).click();
    await button(page, name).waitFor({ state: "detached" });
  }
  await cell(page, "05.png").getByText("a cat, indoors").waitFor();
  assert.equal(text("05.txt"), before);
  assert.ok(!existsSync(join(place.folder, "cats/00.txt")));
  await done(page);
});

test("files are added, replace none, and are deleted after a question", async () => {
  const page = await open(place, data("texts"));
  await page.goto(`http://127.0.0.1:${place.port}/#/data`);
  await button(page, "New folder").click();
  await page.getByLabel("Name of the new folder").fill("new dogs");
  await page.keyboard.press("Enter");
  await page.getByText("new dogs").waitFor();
  await button(page, "Open this folder").click();
  await page.getByText("There are no pictures, videos or texts here yet.").waitFor();
  const files = [
    { name: "dog.png", mimeType: "image/png", buffer: blocks(7) },
    { name: "dog.txt", mimeType: "text/plain", buffer: Buffer.from("a dog") },
    { name: "run.sh", mimeType: "text/plain", buffer: Buffer.from("rm") },
  ];
  await page.getByLabel("Files to add").setInputFiles(files);
  await page.getByText("run.sh is no picture, video or text").waitFor();
  await cell(page, "dog.png").getByText("a dog").waitFor();
  await page.getByLabel("Files to add").setInputFiles([{ ...files[1], buffer: Buffer.from("other") }]);
  await page.getByText("there is already a file `dog.txt`").waitFor();
  const folder = join(place.folder, "new dogs");
  assert.equal(readFileSync(join(folder, "dog.txt"), "utf8"), "a dog");
  await cell(page, "dog.png").getByRole("checkbox").check();
  await button(page, "Delete 1").click();
  await button(page, "Yes").press("Escape");
  assert.deepEqual(readdirSync(folder), ["dog.png", "dog.txt"]);
  await button(page, "Delete 1").click();
  await button(page, "Yes").click();
  await page.getByText("0 pictures,").waitFor();
  assert.deepEqual(readdirSync(folder), []);
  await page.context().close();
});

test("a folder that is dropped is added", async () => {
  mkdirSync(join(place.folder, "drops"));
  const page = await open(place, data("drops"));
  await page.locator(".drop").waitFor();
  const transfer = await page.evaluateHandle(
    (bytes) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([new Uint8Array(bytes)], "dropped.png", { type: "image/png" }));
      return transfer;
    },
    [...blocks(3)],
  );
  await page.dispatchEvent(".drop", "drop", { dataTransfer: transfer });
  await cell(page, "dropped.png").waitFor();
  assert.deepEqual(readFileSync(join(place.folder, "drops/dropped.png")), blocks(3));
  await done(page);
});

test("a model on this machine writes the captions that are missing", async () => {
  /** @type {{ model: string, messages: unknown }[]} */
  const asked = [];
  const model = createServer((request, response) => {
    let body = "";
    request.on("data", (piece) => (body += piece));
    request.on("end", () => {
      if (request.url === "/v1/models") return response.end(JSON.stringify({ data: [{ id: "tiny-vision" }] }));
      asked.push(JSON.parse(body));
      response.end(JSON.stringify({ choices: [{ message: { content: `what a model\nsees, ${asked.length}` } }] }));
    });
  });
  await new Promise((ready) => model.listen(0, "127.0.0.1", () => ready(null)));
  const page = await open(place, data("cats"));
  const panel = page.locator("details", { hasText: "Let a model write captions" });
  await panel.locator("summary").click();
  await panel.getByLabel("Port").fill(String(/** @type {import("node:net").AddressInfo} */ (model.address()).port));
  await panel.getByLabel("Port").press("Tab");
  await panel.getByLabel("Model").locator("option", { hasText: "tiny-vision" }).waitFor({ state: "attached" });
  await button(page, "Write 6 captions").click();
  await panel.getByText("6 of 6, 5 written, ended").waitFor();
  await panel.getByText(/broken\.png: /).waitFor();
  await cell(page, "00.png").getByText("what a model sees, 1").waitFor();
  assert.equal(text("00.txt"), "what a model sees, 1\n");
  assert.equal(text("05.txt"), "a cat, indoors\n");
  assert.equal(asked.length, 5);
  assert.equal(asked[0].model, "tiny-vision");
  await picture(page, "data-captions");
  model.close();
  await page.context().close();
});

test("the trainer says at which size each is trained", async () => {
  const page = await open(place, data("cats"));
  const panel = page.locator("details", { hasText: "How they are trained" });
  await panel.locator("summary").click();
  await panel.getByLabel("Model").locator("option", { hasText: "tiny-image" }).waitFor({ state: "attached" });
  await button(page, "Look").click();
  await cell(page, "05.png")
    .getByText(/96 × 96 → \d+ × \d+/)
    .waitFor();
  await cell(page, "broken.png").getByText("cannot be used").waitFor();
  await page.context().close();
});

test("of a large folder only what is in sight exists", async () => {
  const page = await open(place, data("many"));
  await page.locator(".cell").first().waitFor();
  const names = () => page.locator(".cell > b").allTextContents();
  assert.ok((await names()).length < 80);
  await page.locator(".cell .open").first().focus();
  await page.keyboard.press("End");
  await cell(page, `0${MANY - 1}.png`).waitFor();
  assert.ok((await names()).length < 80);
  assert.equal(await page.evaluate(() => document.activeElement.ariaLabel), `0${MANY - 1}.png, no caption`);
  await page.keyboard.press("Home");
  await cell(page, "0000.png").waitFor();
  await page.getByLabel("Find in names and captions").fill("0123");
  await page.waitForFunction(() => document.querySelectorAll(".cell").length === 1);
  await done(page);
});

test("texts are shown as a model reads them, with how long they are", async () => {
  const page = await open(place, data("texts"));
  await page.locator(".rows mark").first().waitFor();
  await page.getByRole("combobox", { name: "At most" }).selectOption("128");
  await page.getByText(/row 1: 129 tokens/).waitFor();
  await page
    .getByRole("img", { name: /Half of these \d+ examples have at most \d+ tokens, the longest \d+; \d+ are divided between rows/ })
    .waitFor();
  await picture(page, "data-lengths", page.locator("main"), 760);
  await done(page);
});

for (const colorScheme of /** @type {const} */ (["light", "dark"])) {
  test(`data on a phone and a desk, ${colorScheme}: nothing is too wide, and axe-core finds nothing serious`, async () => {
    for (const options of [PHONE, { viewport: { width: 1360, height: 900 } }]) {
      const page = await open(place, data("cats"), { ...options, colorScheme });
      await page.locator(".cell img").nth(3).waitFor();
      for (const summary of await page.locator("details.tool > summary").all()) await summary.click();
      assert.ok((await tooWide(page)) <= 0);
      assert.deepEqual(await serious(page), []);
      if (options !== PHONE && colorScheme === "light") {
        for (const summary of await page.locator("details.tool > summary").all()) await summary.click();
        await picture(page, "data-folder", page.locator("main"), 900);
      }
      await button(page, /^05\.png/).click();
      await page.getByRole("dialog").waitFor();
      assert.ok((await tooWide(page)) <= 0);
      assert.deepEqual(await serious(page), []);
      if (process.env.SCREENSHOTS && colorScheme === "dark") {
        await page.screenshot({ path: join(process.env.SCREENSHOTS, `light-box-${options === PHONE ? "phone" : "desk"}.png`) });
      }
      await page.context().close();
    }
  });
}
