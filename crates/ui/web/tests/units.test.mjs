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
  const sum = (files) => files.reduce((all, { size }) => all + size, 0);
  const first = sum(sizes.filter(({ isFirst }) => isFirst));
  assert.ok(first > 10_000 && first < 60_000, `${first} bytes before anything is shown`);
  const withoutEditor = sum(sizes.filter(({ name }) => !name.startsWith("new-")));
  assert.ok(withoutEditor < 150_000, `${withoutEditor} bytes without the editor`);
});

test("the time left does not depend on when the page looks", async () => {
  const source = readFileSync(new URL("../src/format.ts", import.meta.url), "utf8");
  const { code } = await transformWithOxc(source, "format.ts");
  const { timeLeft } = await import(`data:text/javascript,${encodeURIComponent(code)}`);
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
