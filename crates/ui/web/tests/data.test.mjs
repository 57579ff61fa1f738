// The data of a config, samples that play, and prompts to what a run has made, with the real trainer.
import assert from "node:assert/strict";
import { appendFileSync, copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { crc32, deflateSync } from "node:zlib";
import { Place, writeRun } from "./place.mjs";
import { CONFIG, open, PHONE, picture, serious, tooWide } from "./shared.mjs";

let place;

/** A picture with a gradient. */
function png(width, height, [red, green, blue]) {
  const chunk = (kind, data) => {
    const body = Buffer.concat([Buffer.from(kind), data]);
    const length = Buffer.alloc(4);
    length.writeUInt32BE(data.length);
    const sum = Buffer.alloc(4);
    sum.writeUInt32BE(crc(body));
    return Buffer.concat([length, body, sum]);
  };
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  head.set([8, 2, 0, 0, 0], 8);
  const rows = Buffer.alloc((width * 3 + 1) * height);
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) rows.set([red, (green * x) / width, (blue * y) / height], y * (width * 3 + 1) + 1 + x * 3);
  }
  return Buffer.concat([
    Buffer.from("\x89PNG\r\n\x1a\n", "latin1"),
    chunk("IHDR", head),
    chunk("IDAT", deflateSync(rows)),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

/** The sum that chunks of a picture end with. */
function crc(bytes) {
  if (crc32) return crc32(bytes);
  let sum = -1;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit += 1) sum = (sum >>> 1) ^ (sum & 1 ? 0xedb88320 : 0);
  }
  return (sum ^ -1) >>> 0;
}

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

async function look(page, config) {
  await page.getByRole("textbox", { name: "Config", exact: true }).fill(config);
  await page.waitForSelector("text=The config is valid.");
  await page.getByRole("button", { name: "Show the data" }).click();
}

test("rows of text have what is learned marked, and are shown as text", async () => {
  const page = await open(place, "#/new");
  await look(page, CONFIG);
  await page.waitForSelector("text=/20 of [0-9]+ rows/");
  const row = page.locator(".rows li").first();
  assert.match(await row.textContent(), /17 tokens, 16 of them trained on/);
  const marked = (await row.locator("mark").allTextContents()).join("");
  assert.equal(Buffer.byteLength(marked), 16);
  assert.equal(await page.locator(".rows b").count(), 0);
  await picture(page, "data-text", page.locator("section:has(.rows)"), 460);
  await page.getByRole("button", { name: "More rows" }).click();
  await page.waitForFunction(() => document.querySelectorAll(".rows li").length === 100);
  assert.deepEqual(await serious(page), []);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("pictures have their buckets, and captions that are changed as long as nobody else does", async () => {
  const page = await open(place, "#/new");
  await look(page, PICTURES);
  const item = (name) => page.getByRole("listitem", { name });
  await item("boat.png").waitFor();
  assert.match(await item("boat.png").textContent(), /96 × 48, training size \d+ × \d+/);
  assert.match(await item("tower.png").textContent(), /has no caption/);
  assert.match(await item("walk").textContent(), /clips: 0 to 4/);
  await page.waitForFunction(() => [...document.querySelectorAll(".media img")].every((each) => each.complete && each.naturalWidth > 0));
  assert.equal(await item("boat.png").getByLabel("Caption").inputValue(), "a <i>boat</i> on the sea");
  const caption = (name) => readFileSync(join(place.folder, "pictures", name), "utf8");
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
  await picture(page, "data", page.locator("section:has(.media)"));
  assert.deepEqual(await serious(page), []);
  await page.context().close();
});

test("what the network may not reach is not looked at", async () => {
  const page = await open(place, "#/new");
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

test("a video among the samples plays, side by side with that of another step", async () => {
  const folder = writeRun(place.runs, "film", { done: 400, ending: "completed" });
  const page = await open(place, "#/");
  // The browser makes one: no other program is needed.
  const made = await page.evaluate(async () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [64, 64];
    const draw = canvas.getContext("2d");
    const recorder = new MediaRecorder(canvas.captureStream(20), { mimeType: "video/webm" });
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
  mkdirSync(join(folder, "samples"));
  const lines = [];
  for (const step of [200, 400]) {
    writeFileSync(join(folder, `samples/${step}.webm`), Buffer.from(made));
    writeFileSync(join(folder, `samples/${step}.png`), png(120, 30, [step / 2, 100, 90]));
    lines.push(
      JSON.stringify({
        kind: "samples",
        step,
        samples: [{ prompt: "a boat", text: "64 × 64, 20 frames", files: [`samples/${step}.webm`, `samples/${step}.png`] }],
      }),
    );
  }
  writeFileSync(
    join(folder, "metrics.jsonl"),
    readFileSync(join(folder, "metrics.jsonl"), "utf8")
      .split("\n")
      .filter((line) => !line.includes('"samples"'))
      .join("\n"),
  );
  appendFileSync(join(folder, "metrics.jsonl"), `${lines.join("\n")}\n`);
  await page.goto(`http://127.0.0.1:${place.port}/#/run/film`);
  // What moves begins when it is in sight.
  await page.locator("video").first().scrollIntoViewIfNeeded();
  await page.waitForFunction(
    () => [...document.querySelectorAll("video")].filter((video) => video.currentTime > 0.1 && video.videoWidth === 64).length === 2,
  );
  await page.locator("summary", { hasText: "Frames" }).first().click();
  await page.waitForFunction(() => document.querySelector(".sample details img")?.naturalWidth === 120);
  assert.deepEqual(await serious(page), []);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("a prompt is answered as it comes, by what a run has made, and stopped", async () => {
  const page = await open(place, "#/new");
  // A context that holds the long answer which is stopped below.
  const config = CONFIG.replace("name: tiny", "name: asked")
    .replace("block_size: 16", "block_size: 2048\n  validation_fraction: 0")
    .replace("per_device_train_batch_size: 2", "per_device_train_batch_size: 1");
  await page.getByRole("textbox", { name: "Config", exact: true }).fill(config);
  await page.waitForSelector("text=The config is valid.");
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
  await page.waitForFunction(async () => {
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
    const lines = [{ progress: "step 1 of 2\nstep 2 of 2\n" }, { end: true, error: null, file: "/api/tried/0123456789abcdef.webp" }];
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

for (const colorScheme of ["light", "dark"]) {
  test(`data on a phone, ${colorScheme}: nothing is too wide, and axe-core finds nothing serious`, async () => {
    const page = await open(place, "#/data?like=asked", { colorScheme, ...PHONE });
    await page.locator(".rows li").first().waitFor();
    assert.ok((await tooWide(page)) <= 0);
    assert.deepEqual(await serious(page), []);
    await page.goto(`http://127.0.0.1:${place.port}/#/new`);
    await look(page, PICTURES);
    await page.locator(".media li").first().waitFor();
    assert.ok((await tooWide(page)) <= 0);
    assert.deepEqual(await serious(page), []);
    await page.context().close();
  });
}
