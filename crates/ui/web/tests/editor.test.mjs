// The config editor: form and text in step, suggestions, the trainer's own messages.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Place } from "./place.mjs";
import { CONFIG, open, PHONE, picture, serious, tooWide } from "./shared.mjs";

/** @import { Page } from "playwright-core" */

/** @type {Place} */
let place;
const fine = ".actions .badge.completed";
const text = (/** @type {Page} */ page) => page.getByRole("textbox", { name: "Config", exact: true });
const form = (/** @type {Page} */ page) => page.getByRole("region", { name: "Form" });

before(async () => {
  place = await Place.open();
  writeFileSync(join(place.folder, "text.txt"), Array.from({ length: 400 }, (_, n) => `${n} bottles of ale\n`).join(""));
});

after(() => place?.close());

test("the form and the text are kept in step, and comments stay", async () => {
  const page = await open(place, "#/new?whole");
  await text(page).fill(CONFIG);
  await page.waitForSelector(fine);
  await form(page)
    .locator("summary", { hasText: /^train / })
    .click();
  const steps = form(page).getByLabel("max_steps");
  assert.equal(await steps.inputValue(), "6");
  await steps.fill("8");
  await steps.press("Enter");
  assert.equal(await text(page).inputValue(), CONFIG.replace("max_steps: 6 # few", "max_steps: 8 # few"));
  // A key that is not there yet, and one that is taken out.
  await form(page).getByLabel("lr_scheduler_type").selectOption("linear");
  await form(page).getByLabel("save_steps").fill("");
  await form(page).getByLabel("save_steps").press("Tab");
  const wanted = CONFIG.replace("max_steps: 6 # few", "max_steps: 8 # few").replace("  save_steps: 0\n", "  lr_scheduler_type: linear\n");
  assert.equal(await text(page).inputValue(), wanted);
  await text(page).fill(wanted.replace("max_steps: 8", "max_steps: 9"));
  assert.equal(await steps.inputValue(), "9");
  await page.waitForSelector(fine);
  // What the trainer says of a value stands beside its field, too.
  await form(page).getByLabel("learning_rate", { exact: true }).fill("20");
  await form(page).getByLabel("learning_rate", { exact: true }).press("Enter");
  await page.getByRole("button", { name: /config:15:18/ }).waitFor();
  assert.equal(await form(page).getByLabel("learning_rate", { exact: true }).getAttribute("aria-invalid"), "true");
  assert.match(await form(page).locator(".wrong").textContent(), /20|10/);
  await picture(page, "new");
  // A text that is no YAML stays as it is.
  await text(page).fill("train: [\n");
  await page.waitForSelector("text=The text is not valid YAML at the moment");
  await page.getByRole("button", { name: /config:\d:\d/ }).waitFor();
  assert.ok(await form(page).getByLabel("name", { exact: true }).isDisabled());
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("a config is written with the keyboard and what is suggested", async () => {
  const page = await open(place, "");
  // The keys come later than the first letters.
  /** @type {() => void} */
  let typed;
  const untilTyped = new Promise((done) => (typed = () => done(null)));
  await page.route("**/api/schema", (route) => untilTyped.then(() => route.continue()));
  await page.goto(`http://127.0.0.1:${place.port}/#/new?whole`);
  await text(page).fill("");
  await text(page).focus();
  await page.keyboard.type("tr");
  typed();
  await page.getByRole("listbox", { name: "Suggestions" }).waitFor();
  assert.equal(
    await text(page).getAttribute("aria-activedescendant"),
    await page.locator(".offers [aria-selected=true]").getAttribute("id"),
  );
  assert.deepEqual(await serious(page), []);
  await page.keyboard.press("Enter");
  assert.equal(await text(page).inputValue(), "train:\n  ");
  await page.keyboard.type("bf");
  await page.keyboard.press("Tab");
  // The values that it may have come by themselves.
  await page.waitForFunction(() => document.querySelectorAll(".offers li").length === 3);
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  assert.equal(await text(page).inputValue(), "train:\n  bf16: false");
  await page.keyboard.press("Enter");
  await page.keyboard.type("  max_s");
  await page.waitForSelector(".offers li:has-text('max_steps')");
  await page.keyboard.press("Escape");
  await page.waitForSelector(".offers", { state: "detached" });
  await page.keyboard.press("Control+Space");
  await page.locator(".offers li", { hasText: "max_steps" }).waitFor();
  await picture(page, "suggestions", page.locator(".code"));
  await page.keyboard.press("Enter");
  await page.keyboard.type("3");
  assert.equal(await text(page).inputValue(), "train:\n  bf16: false\n  max_steps: 3");
  await page.keyboard.press("Control+z");
  assert.notEqual(await text(page).inputValue(), "train:\n  bf16: false\n  max_steps: 3");
  // Tab leaves when nothing is offered.
  await page.keyboard.press("Tab");
  assert.notEqual(await page.evaluate(() => document.activeElement?.tagName), "TEXTAREA");
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("a dry run shows the memory of a step", async () => {
  const page = await open(place, "#/new?whole");
  await text(page).fill(CONFIG);
  await page.waitForSelector(fine);
  await page.getByRole("button", { name: "Estimate memory and time" }).click();
  const table = page.getByRole("table", { name: "Estimated memory of a step" });
  await table.waitFor();
  assert.match(await table.textContent(), /weights[\d.]+ KiB.*peak, of [\d.]+ .iB free[\d.]+ KiB/);
  await page.waitForSelector("text=The whole model stays on the device");
  await page.context().close();
});

for (const colorScheme of /** @type {const} */ (["light", "dark"])) {
  test(`the editor on a phone, ${colorScheme}: nothing is too wide, and axe-core finds nothing serious`, async () => {
    const page = await open(place, "#/new?whole", { colorScheme, ...PHONE });
    await text(page).fill(CONFIG.replace("max_steps: 6", "max_steps: -6"));
    await page.getByRole("button", { name: /config:10:14/ }).waitFor();
    await form(page).getByLabel("Find a key").fill("steps");
    await form(page).getByLabel("max_steps").waitFor();
    assert.ok((await tooWide(page)) <= 0);
    assert.deepEqual(await serious(page), []);
    await page.context().close();
  });
}
