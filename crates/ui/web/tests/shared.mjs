// What several files of tests use.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { crc32, deflateSync } from "node:zlib";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const pictures = process.env.SCREENSHOTS;
/** The machine may do much else. */
const PATIENCE = Number(process.env.PATIENCE ?? 90_000);

/** A run of seconds, on `text.txt`. */
export const CONFIG = `name: tiny
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}
data:
  # a small text
  path: text.txt
  block_size: 16
sample: {max_new_tokens: 4}
train:
  bf16: false
  max_steps: 6 # few
  per_device_train_batch_size: 2
  logging_steps: 2
  eval_steps: 0
  save_steps: 0
`;

/** @import { BrowserContextOptions, Locator, Page } from "playwright-core" */
/** @import { Place, TestPage } from "./place.mjs" */

/**
 * What axe-core finds that keeps people out.
 * @param {Page} page
 */
export async function serious(page) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return found.violations
    .filter((violation) => ["serious", "critical"].includes(violation.impact))
    .map((violation) => `${violation.id}: ${violation.nodes.map((node) => node.html).join(" ")}`);
}

/**
 * A picture for the handbook, where some are asked for: of a part of the page, at most so high.
 * @param {Page} page
 * @param {string} name
 * @param {Locator} what
 */
export async function picture(page, name, what = page.locator("main"), height = Infinity) {
  if (!pictures) return;
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  const clip = await what.evaluate((element) => {
    const { left, top, width, height } = element.getBoundingClientRect();
    return { x: left + scrollX, y: top + scrollY, width, height };
  });
  clip.height = Math.min(clip.height, height);
  await page.screenshot({ path: join(pictures, `ui-${name}.png`), fullPage: true, clip });
}

/**
 * How many pixels a page is wider than its window.
 * @param {Page} page
 */
export const tooWide = (page) => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);

export const PHONE = { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true };

/**
 * A page at a view of a place.
 * @param {Place} place
 * @param {string} hash
 * @param {BrowserContextOptions} [options]
 * @returns {Promise<TestPage>}
 */
export async function open(place, hash, options) {
  const page = await place.page(options);
  page.setDefaultTimeout(PATIENCE);
  await page.goto(`http://127.0.0.1:${place.port}/${hash}`);
  return page;
}

/**
 * Waits until what a page asks the server is so. `waitForFunction` takes the promise of an answer for a yes.
 * @param {Page} page
 * @param {() => Promise<boolean>} isSo
 */
export async function until(page, isSo) {
  const end = Date.now() + PATIENCE;
  while (!(await page.evaluate(isSo))) {
    if (Date.now() > end) throw new Error(`not so within ${PATIENCE / 1000} s: ${isSo}`);
    await new Promise((done) => setTimeout(done, 100));
  }
}

/**
 * A picture with a gradient, or with a pattern in its green.
 * @param {number} width
 * @param {number} height
 * @param {number[]} colour
 * @param {(x: number, y: number) => number} [pattern]
 */
export function png(width, height, [red, green, blue], pattern = (x) => (green * x) / width) {
  /** @type {(kind: string, data: Buffer) => Buffer} */
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
    for (let x = 0; x < width; x += 1) rows.set([red, pattern(x, y), (blue * y) / height], y * (width * 3 + 1) + 1 + x * 3);
  }
  return Buffer.concat([
    Buffer.from("\x89PNG\r\n\x1a\n", "latin1"),
    chunk("IHDR", head),
    chunk("IDAT", deflateSync(rows)),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

/**
 * The sum that chunks of a picture end with.
 * @param {Buffer} bytes
 */
function crc(bytes) {
  if (crc32) return crc32(bytes);
  let sum = -1;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit += 1) sum = (sum >>> 1) ^ (sum & 1 ? 0xedb88320 : 0);
  }
  return (sum ^ -1) >>> 0;
}
