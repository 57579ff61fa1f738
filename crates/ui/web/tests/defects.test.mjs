// Connections, the keyboard, and jobs that have no run, in a real browser.
import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Place, trainLine, writeRun } from "./place.mjs";
import { open } from "./shared.mjs";

/** @import { Page } from "playwright-core" */

/** @type {Place} */
let place;

before(async () => {
  place = await Place.open();
  writeRun(place.runs, "ended", { ending: "stopped", done: 300 });
});

after(() => place?.close());

/** A request to the server, as the page sends it. */
const post = (/** @type {Page} */ page, /** @type {string} */ path, /** @type {object} */ body) =>
  page.evaluate(
    async ([path, body]) => {
      const response = await fetch(`/api${path}`, { method: "POST", body: JSON.stringify(body) });
      return response.json();
    },
    [path, body],
  );

/** Hides or shows a tab; a browser without windows shows all. */
const show = (/** @type {Page} */ page, /** @type {boolean} */ isVisible) =>
  page.evaluate(
    (/** @type {string} */ state) => {
      Object.defineProperty(document, "visibilityState", { configurable: true, get: () => state });
      document.dispatchEvent(new Event("visibilitychange"));
    },
    isVisible ? "visible" : "hidden",
  );

test("a hidden tab has no connection, and continues once it is seen", async () => {
  const page = await open(place, "#/");
  await page.waitForSelector("text=ended");
  const ends = page.waitForEvent("requestfailed", (request) => request.url().endsWith("/api/stream"));
  await show(page, false);
  await ends;
  writeRun(place.runs, "later", { ending: "completed" });
  const begins = page.waitForRequest("**/api/stream");
  await show(page, true);
  await begins;
  await page.waitForSelector("text=later");
  await page.context().close();
});

test("seven tabs work, since hidden ones have no connection", async () => {
  const page = await open(place, "#/");
  /** @type {Page[]} */
  const tabs = [page];
  for (let number = 1; number < 7; number += 1) {
    await page.waitForSelector("text=ended");
    await show(tabs.at(-1), false);
    const tab = await page.context().newPage();
    await tab.goto(`http://127.0.0.1:${place.port}/#/`);
    await tab.waitForSelector("text=ended");
    tabs.push(tab);
  }
  await page.context().close();
});

test("a session that has ended is told, and the page reconnects after signing in again", async () => {
  const page = await open(place, "#/");
  await page.waitForSelector("text=ended");
  await page.context().clearCookies();
  await show(page, false);
  await show(page, true);
  await page.waitForSelector("text=reconnects once you have signed in");
  const other = await page.context().newPage();
  await other.goto(place.url);
  await other.waitForSelector("text=ended");
  await page.waitForSelector("text=reconnects once you have signed in", { state: "detached" });
  await page.context().close();
});

test("a run's curves continue after its tab was hidden", async () => {
  writeRun(place.runs, "hidden", { done: 100 });
  const page = await open(place, "#/run/hidden");
  await page.waitForSelector("h1:has-text('hidden')");
  await page.getByRole("img", { name: /training: .* at step 100/ }).waitFor();
  await show(page, false);
  place.append("hidden", `${trainLine(110, 800, 2e-3, () => 0)}\n`);
  await show(page, true);
  await page.getByRole("img", { name: /training: .* at step 110/ }).waitFor();
  await page.context().close();
});

test("a held-out loss that is alone is drawn, and is in the list however much follows it", async () => {
  const folder = join(place.runs, "alone");
  mkdirSync(folder);
  writeFileSync(join(folder, "config.yaml"), "name: alone\ntrain:\n  max_steps: 800\n");
  const lines = Array.from({ length: 800 }, (_, step) => trainLine(step + 1, 800, 2e-3, () => 0));
  lines.splice(400, 0, JSON.stringify({ kind: "eval", step: 400, eval_loss: 7.5 }));
  writeFileSync(join(folder, "metrics.jsonl"), `${lines.join("\n")}\n`);
  const page = await open(place, "#/");
  await page.locator("tr", { hasText: "alone" }).getByText("7.5").waitFor();
  await page.goto(`http://127.0.0.1:${place.port}/#/run/alone`);
  await page.locator(".figure", { hasText: "Held-out loss" }).getByText("7.5").waitFor();
  const canvas = page.locator(".chart canvas").first();
  await canvas.waitFor();
  // The colour of its line is nowhere else on the canvas.
  await page.waitForFunction(() => {
    const wanted = getComputedStyle(document.documentElement).getPropertyValue("--two").trim();
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(wanted.slice(at, at + 2), 16));
    const canvas = document.querySelector(".chart canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    for (let at = 0; at < data.length; at += 4) if (data[at] === red && data[at + 1] === green && data[at + 2] === blue) return true;
    return false;
  });
  await page.context().close();
});

test("each view has a title", async () => {
  const page = await open(place, "#/");
  for (const [hash, title] of [
    ["#/", "Runs"],
    ["#/queue", "Queue"],
    ["#/new", "New run"],
    ["#/doctor", "Doctor"],
    ["#/run/ended", "ended"],
    ["#/data?like=ended", "Data of ended"],
    ["#/compare?run=ended&run=later", "Compare 2 runs"],
  ]) {
    await page.evaluate((hash) => (location.hash = hash), hash);
    await page.waitForFunction((title) => document.title === title, `${title} – Surefoot`);
  }
  await page.context().close();
});

test("a question is answered by Escape, and the focus stays", async () => {
  const page = await open(place, "#/run/ended");
  const focused = (/** @type {string | RegExp} */ text) =>
    page.waitForFunction((text) => document.activeElement?.textContent === text, text);
  const remove = page.getByRole("button", { name: "Remove" });
  for (const answer of ["Escape", "Enter"]) {
    await remove.focus();
    await page.keyboard.press("Enter");
    await focused("No");
    await page.keyboard.press(answer);
    await focused("Remove");
  }
  await page.context().close();
});

test("a job that is moved keeps the focus", async () => {
  const page = await open(place, "#/queue");
  await post(page, "/queue/pause", { paused: true });
  for (const name of ["x", "y", "z"]) await post(page, "/queue", { config: `name: ${name}\n` });
  const down = page.getByRole("button", { name: "Move job 1 down" });
  await page.getByRole("button", { name: "Move job 3 up" }).waitFor();
  await down.focus();
  for (const place of [1, 2]) {
    await page.keyboard.press("Enter");
    await page.waitForFunction((place) => document.querySelectorAll("li.job")[place]?.ariaLabel === "Job 1, x, waiting", place);
    const way = place === 1 ? "down" : "up";
    await page.waitForFunction((label) => document.activeElement?.ariaLabel === label, `Move job 1 ${way}`);
  }
  await page.context().close();
});

test("the config of a waiting job is shown, and what it overrides is kept", async () => {
  const page = await open(place, "#/queue");
  const { id } = await post(page, "/queue", { config: "name: mine # a comment\n", set: { "train.max_steps": "5" } });
  await page.getByRole("link", { name: `Config of job ${id}` }).click();
  await page.waitForSelector("text=train.max_steps=5");
  await page.waitForFunction(() => document.querySelector("textarea")?.value === "name: mine # a comment\n");
  await page.context().close();
});

test("nothing is added before it is checked, and a mistake of a key has no place in the text", async () => {
  const page = await open(place, "#/new?whole");
  let answer = () => {};
  /** @type {Promise<void>} */
  const asked = new Promise((done) => {
    void page.route("**/api/check", async (route) => {
      /** @type {Promise<void>} */
      const answered = new Promise((go) => {
        answer = go;
        done();
      });
      await answered;
      const problem = { source: "--set", line: 1, column: 1, message: "no such key", help: /** @type {string | null} */ (null) };
      await route.fulfill({ json: { found: { problems: [problem] }, error: null } });
    });
  });
  await page.reload();
  await asked;
  const button = page.getByRole("button", { name: "Add to the queue" });
  assert.equal(await button.isDisabled(), true);
  answer();
  await page.waitForSelector("text=no such key");
  assert.equal(await button.isDisabled(), true);
  assert.equal(await page.getByRole("button", { name: /no such key/ }).count(), 0);
  await page.context().close();
});
