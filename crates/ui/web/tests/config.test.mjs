// Changing a config's text by the form, and what is offered while one types.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { createServer } from "vite";
import { parse } from "yaml";

const configs = new URL("../../../../configs/", import.meta.url);
const schema = JSON.parse(readFileSync(new URL("schema.json", configs), "utf8"));
/** @import { Field } from "../src/schema" */
/** @import { Offer } from "../src/complete" */

/** @type {import("vite").ViteDevServer} */
let vite;
/** @type {typeof import("../src/yaml")} */
let yaml;
/** @type {typeof import("../src/schema").fieldsOf} */
let fieldsOf;
/** @type {typeof import("../src/complete").offers} */
let offers;
/** @type {Field[]} */
let fields;

before(async () => {
  vite = await createServer({
    server: { middlewareMode: true, ws: false, hmr: false },
    appType: "custom",
    logLevel: "error",
    configFile: false,
  });
  yaml = /** @type {typeof yaml} */ (await vite.ssrLoadModule("/src/yaml.ts"));
  ({ fieldsOf } = await vite.ssrLoadModule("/src/schema.ts"));
  ({ offers } = await vite.ssrLoadModule("/src/complete.ts"));
  fields = fieldsOf(schema);
});

after(() => vite?.close());

const TEXT = `# my night
name: small   # its name

data:
  path: text.txt # there
  # 256 is too long
  block_size: 16

train: {bf16: false, max_steps: 6}
sample:
  prompts:
  - "one" # first
  - two
model:
  hidden_size: 32`;

const set = (/** @type {string} */ text, /** @type {string} */ path, /** @type {string | string[] | null} */ value) =>
  yaml.Config.parse(text).set(path.split("."), value);

test("a value is changed and all else stays, comments and order included", () => {
  for (const [path, value, from, to] of /** @type {[string, string | string[], string, string][]} */ ([
    ["name", "other", "name: small   #", "name: other   #"],
    ["data.block_size", "32", "block_size: 16", "block_size: 32"],
    ["data.path", '"a b"', "path: text.txt #", 'path: "a b" #'],
    ["train.max_steps", "7", "max_steps: 6", "max_steps: 7"],
    ["train.learning_rate", "1e-3", "max_steps: 6}", "max_steps: 6, learning_rate: 1e-3}"],
    ["data.format", "text", "block_size: 16\n", "block_size: 16\n  format: text\n"],
    ["seed", "7", "hidden_size: 32", "hidden_size: 32\nseed: 7\n"],
    ["adapter.r", "8", "hidden_size: 32", "hidden_size: 32\nadapter:\n  r: 8\n"],
    ["model.head_dim", "8", "hidden_size: 32", "hidden_size: 32\n  head_dim: 8\n"],
    ["sample.prompts", ["x: y", "z"], '- "one" # first\n  - two', '- "x: y"\n  - z'],
    ["sample.max_new_tokens", "4", "- two\n", "- two\n  max_new_tokens: 4\n"],
    ["data.block_size", null, "  block_size: 16\n", ""],
    ["train.bf16", null, "{bf16: false, max", "{max"],
    ["train.max_steps", null, ", max_steps: 6", ""],
    ["sample.prompts", null, 'sample:\n  prompts:\n  - "one" # first\n  - two\n', ""],
    ["model.hidden_size", null, "model:\n  hidden_size: 32", ""],
    ["notify.url", null, "", ""],
  ])) {
    assert.equal(set(TEXT, path, value), TEXT.replace(from, to), `${path} = ${value}`);
  }
});

test("texts of all shapes", () => {
  for (const [text, path, value, wanted] of /** @type {[string, string, string | string[], string | null][]} */ ([
    ["", "name", "a", "name: a\n"],
    ["# only this", "train.max_steps", "1", "# only this\ntrain:\n  max_steps: 1\n"],
    ["{}", "name", "a", "{name: a}"],
    ["null\n", "name", "a", "\nname: a\n"],
    ["train:\n", "train.max_steps", "1", "train:\n  max_steps: 1\n"],
    ["train: # soon\nname: a\n", "train.max_steps", "1", "train: # soon\n  max_steps: 1\nname: a\n"],
    ["adapter: null\nname: a\n", "adapter.r", "8", "adapter:\n  r: 8\nname: a\n"],
    ["train: {}\n", "train.max_steps", "1", "train: {max_steps: 1}\n"],
    ["sample: {prompts: [a]}\n", "sample.prompts", ["b", "c"], 'sample: {prompts: ["b","c"]}\n'],
    ["sample:\n  prompts: [a] # x\n", "sample.prompts", ["b"], 'sample:\n  prompts: ["b"] # x\n'],
    ["sample:\n  prompts:\n    - a\n\n# end\n", "sample.prompts", ["b"], "sample:\n  prompts:\n    - b\n\n# end\n"],
    ["name:\n", "name", "x", "name: x\n"],
    ["data: {path: a, # why\n  format: text}\n", "data.block_size", "8", null],
    ["a: &x {r: 1}\n", "a.r", "2", null],
  ])) {
    assert.equal(set(text, path, value), wanted, JSON.stringify(text));
  }
  assert.equal(yaml.Config.parse("a: [\n"), null);
  assert.equal(yaml.Config.parse("- a\n"), null);
});

/** Every key of the schema, in every config of the project: what is set is read again, and nothing else changes. */
test("each key can be set in each config, and taken out again", () => {
  /** @type {(list: Field[]) => Field[]} */
  const leaves = (list) => list.flatMap((field) => (field.fields.length > 0 ? leaves(field.fields) : [field]));
  /** @type {Record<string, string | string[]>} */
  const values = { number: "7", text: yaml.scalar("a: b #c"), list: ["x", "- y"], yaml: "7" };
  let count = 0;
  for (const name of readdirSync(configs).filter((name) => name.endsWith(".yaml"))) {
    const text = readFileSync(new URL(name, configs), "utf8");
    const before = parse(text);
    const comments = (/** @type {string} */ text) => text.split("\n").filter((/** @type {string} */ line) => /^\s*#/.test(line));
    for (const { path, kind, choices } of leaves(fields)) {
      const value = kind === "choice" ? choices[0].text : values[kind];
      const made = yaml.Config.parse(text).set(path, value);
      assert.ok(made !== null, `${name} ${path}`);
      const wanted = structuredClone(before);
      let section = wanted;
      for (const key of path.slice(0, -1)) section = section[key] ??= {};
      section[path.at(-1)] = Array.isArray(value) ? value : parse(value);
      assert.deepEqual(parse(made), wanted, `${name} ${path}`);
      assert.deepEqual(comments(made), comments(text), `${name} ${path}`);
      const got = yaml.Config.parse(made).get(path);
      assert.ok(got, `${name} ${path}`);
      const gone = yaml.Config.parse(made).set(path, null);
      assert.equal(yaml.Config.parse(gone).get(path), null, `${name} ${path}`);
      count += 1;
    }
  }
  assert.ok(count > 1000, `${count}`);
});

test("a place in the text has the key that stands there", () => {
  const at = (/** @type {string} */ needle) => yaml.Config.parse(TEXT).pathAt(TEXT.indexOf(needle)).join(".");
  assert.equal(at("block_size"), "data.block_size");
  assert.equal(at("6}"), "train.max_steps");
  assert.equal(at("two"), "sample.prompts");
  assert.equal(at("small"), "name");
});

test("a value is one line of YAML", () => {
  for (const text of ["1", "[a, b]", "{a: 1}", '"x, y"', "1e-3"]) assert.ok(yaml.isValue(text), text);
  for (const text of ["", "a, b: 1", "}", "[", "a\nb", "x #y", "1}, {b: 2"]) assert.ok(!yaml.isValue(text), text);
});

const offered = (/** @type {string} */ text) => offers(fields, text.replace("|", ""), text.indexOf("|"));
const labels = (/** @type {string} */ text) => offered(text).map((/** @type {Offer} */ offer) => offer.label);

test("keys and values are offered where they may stand", () => {
  assert.deepEqual(labels("na|"), ["name"]);
  assert.ok(labels("|").includes("train"));
  assert.deepEqual(labels("train:\n  learning|"), ["learning_rate"]);
  assert.deepEqual(labels("train:\n  learning_rate: 1\n  learn|"), []);
  assert.deepEqual(labels("train:\n  lear|\n  learning_rate: 1\n"), []);
  assert.deepEqual(labels("train:\n  bf16: |"), ["true", "false", "auto"]);
  assert.deepEqual(labels("train:\n  bf16: a|"), ["auto"]);
  assert.deepEqual(labels("train: {bf16: f|}"), ["false"]);
  assert.deepEqual(labels("train: {max_steps: 3, max_g|}"), ["max_grad_norm"]);
  assert.deepEqual(labels("train: {max_steps: 3, max_ste|}"), []);
  assert.deepEqual(labels("# na|"), []);
  assert.deepEqual(labels("name: |"), []);
  assert.deepEqual(labels("nothing:\n  a|"), []);
  assert.ok(labels("train:\n  lr_scheduler_kwargs:\n    num_c|").includes("num_cycles"));
  assert.equal(offered("tr|")[0].insert, "train:\n  ");
  assert.equal(offered("train:\n  max_gr|: 1")[0].insert, "max_grad_norm");
});
