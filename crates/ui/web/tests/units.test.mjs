// What needs no browser: how much is loaded, and estimates.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { transformWithOxc } from "vite";

const folder = new URL("../../dist/", import.meta.url);

test("the page is small, and the editor is loaded only where it is used", () => {
  const index = readFileSync(new URL("index.html", folder), "utf8");
  const sizes = readdirSync(new URL("assets/", folder)).map((name) => {
    const size = gzipSync(readFileSync(new URL(`assets/${name}`, folder))).length;
    return { name, size, isFirst: index.includes(name) };
  });
  const sum = (/** @type {{ size: number }[]} */ files) => files.reduce((all, { size }) => all + size, 0);
  const first = sum(sizes.filter(({ isFirst }) => isFirst));
  assert.ok(first > 10_000 && first < 60_000, `${first} bytes before anything is shown`);
  // The editor included, which is loaded for a new run.
  assert.ok(sum(sizes) < 150_000, `${sum(sizes)} bytes in all`);
});

/**
 * @typedef {{
 *   "captions.ts": typeof import("../src/captions"),
 *   "diff.ts": typeof import("../src/diff"),
 *   "format.ts": typeof import("../src/format"),
 * }} Modules
 */

/**
 * A module of the page that imports nothing.
 * @template {keyof Modules} Name
 * @param {Name} name
 * @returns {Promise<Modules[Name]>}
 */
async function load(name) {
  const source = readFileSync(new URL(`../src/${name}`, import.meta.url), "utf8");
  const { code } = await transformWithOxc(source, name);
  return import(`data:text/javascript,${encodeURIComponent(code)}`);
}

test("captions are edited as a whole and by tags", async () => {
  const { edited, tagCounts } = await load("captions.ts");
  for (const [before, kind, text, by, after] of /** @type {[string, import("../src/captions").EditKind, string, string, string][]} */ ([
    ["a cat", "front", "ohwx, ", "", "ohwx, a cat"],
    ["a cat", "end", ", outdoors", "", "a cat, outdoors"],
    ["a cat, a cat", "replace", "cat", "$& dog", "a $& dog, a $& dog"],
    ["a cat", "replace", "", "x", "a cat"],
    ["a cat,  Indoors , x", "remove", "indoors", "", "a cat, x"],
    ["a cat,  indoors", "remove", "door", "", "a cat,  indoors"],
    ["", "write", "a cat", "", "a cat"],
    ["mine", "write", "a cat", "", "mine"],
  ])) {
    assert.equal(edited(before, { kind, text, by }), after, `${kind} ${before}`);
  }
  const counts = tagCounts(["b, a", "a,a", null, ""]);
  assert.deepEqual(counts, [
    ["a", 2],
    ["b", 1],
  ]);
});

test("pictures that look alike are found, and of many alike only the first is compared", async () => {
  const { lookAlike } = await load("captions.ts");
  const looks = (/** @type {(string | null)[]} */ hashes) =>
    hashes.map((hash, medium) => ({ medium, hash, sharpness: 1, problem: /** @type {string | null} */ (null) }));
  const found = lookAlike(
    looks(["00000000ffff0000", "1234567890abcdef", "00000000ffff0007", null, "00000000ffff000f", "1234567890abcdef"]),
  );
  // The fifth is four bits from the first, and one from the third.
  assert.deepEqual([...found].sort(), [
    [0, 0],
    [1, 1],
    [2, 0],
    [4, 0],
    [5, 1],
  ]);
  const many = lookAlike(looks(Array.from({ length: 20_000 }, () => "0000000000000000")));
  assert.equal(many.get(19_999), 0);
});

test("the time left does not depend on when the page looks", async () => {
  const { timeLeft } = await load("format.ts");
  // Ten steps are logged every twenty seconds; the page was opened five seconds after a group.
  const seen = [{ step: 40, at: 5 }];
  assert.equal(timeLeft(seen, 100, 6), null);
  seen.push({ step: 50, at: 20 });
  assert.equal(timeLeft(seen, 100, 30), null);
  for (let group = 2; group <= 4; group += 1) {
    seen.push({ step: 40 + 10 * group, at: 20 * group });
    for (let second = 0; second < 20; second += 1) {
      const now = 20 * group + second;
      assert.equal(timeLeft(seen, 100, now), 120 - now, `after ${now} seconds`);
    }
  }
  assert.equal(timeLeft(seen, 80, 1000), 0);
});

test("what is different between two texts is told line by line", async () => {
  const { diff } = await load("diff.ts");
  const told = (/** @type {string} */ before, /** @type {string} */ after) =>
    diff(before, after)
      .map(({ kind, text }) => `${{ same: " ", gone: "-", new: "+" }[kind]}${text}`)
      .join("|");
  assert.equal(told("a\nb\nc", "a\nb\nc"), " a| b| c");
  assert.equal(told("a\nb\nc", "a\nx\nc"), " a|-b|+x| c");
  assert.equal(told("a\nb\nc\nd", "b\nc\ne\nd"), "-a| b| c|+e| d");
  assert.equal(told("", "a"), "-|+a");
  assert.equal(told("x\na\nx", "x"), " x|-a|-x");
});

test("pictures and videos are counted in words, and named files as people count", async () => {
  const { byName, media } = await load("format.ts");
  const said = [media(20, 0), media(1, 1), media(0, 2000), media(0, 0)];
  assert.deepEqual(said, ["20 pictures", "1 picture and 1 video", "2,000 videos", "0 pictures"]);
  assert.deepEqual(["10.png", "2.png", "b/1.png", "1.png"].sort(byName), ["1.png", "2.png", "10.png", "b/1.png"]);
});

test("numbers below each other have the same decimals", async () => {
  const { bytesLike, decimals, ticks } = await load("format.ts");
  assert.deepEqual([1.4, 12.34567, 0.5, 1234.5, 0, 2e-5, null].map(decimals), [
    "1.400",
    "12.346",
    "0.500",
    "1,234.500",
    "0.000",
    "2.00e-5",
    "unknown",
  ]);
  assert.deepEqual(
    [1.5 * 2 ** 30, 2 ** 28, 0].map((value) => bytesLike(2 ** 31, value)),
    ["1.50 GiB", "0.25 GiB", "0.00 GiB"],
  );
  assert.equal(bytesLike(900, 12), "12 B");
  assert.deepEqual(ticks([1.36, 1.4, 1.44], 0.04), ["1.36", "1.40", "1.44"]);
  assert.deepEqual(ticks([0, 0.25, 0.5], 0.25), ["0.00", "0.25", "0.50"]);
  assert.deepEqual(ticks([0, 1, 2], 1), ["0", "1", "2"]);
  assert.deepEqual(ticks([0, 0.00005, 0.0001, 0.00015], 0.00005), ["0", "0.5e-4", "1.0e-4", "1.5e-4"]);
  assert.deepEqual(ticks([0, 10_000, null], 10_000), ["0", "10,000", ""]);
  assert.deepEqual(
    ticks([1024], 1024, (value) => `${value} B`),
    ["1024 B"],
  );
});
