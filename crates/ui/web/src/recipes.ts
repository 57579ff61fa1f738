// What a new run begins with: goals, templates, and the keys that matter for each goal.
import type { Fit, FoundModel } from "./api";
import { bytes } from "./format";
import { Config, scalar } from "./yaml";

export type Goal = "image" | "video" | "chat" | "text";

export const GOALS: { goal: Goal; title: string; about: string; data: string }[] = [
  {
    goal: "image",
    title: "Pictures",
    about: "A person, a thing or a style, as a LoRA for an image model.",
    data: "A folder of ten or more pictures, each with a caption in a text file of the same name.",
  },
  {
    goal: "video",
    title: "Videos",
    about: "A motion, a person or a style, as a LoRA for a video model.",
    data: "A folder of short clips, each with a caption in a text file of the same name; pictures may be among them.",
  },
  {
    goal: "chat",
    title: "Chat",
    about: "How a model answers: its tone, its knowledge, its form.",
    data: "Files of conversations (in “messages”) or of questions with answers (in “prompt” and “completion”): JSON lines, JSON, CSV or Parquet.",
  },
  {
    goal: "text",
    title: "Text",
    about: "How a model continues texts: of stories, notes or code. Also a small model from nothing.",
    data: "Files of text, or records with “text”: plain text, JSON lines, JSON, CSV or Parquet.",
  },
];

/** A config of the repository. */
export interface Template {
  name: string;
  /** Its first comment. */
  about: string;
  text: string;
  goal: Goal;
  /** `model.name_or_path`; unset trains a model from nothing. */
  model: string | null;
  /** The models on the hub that its comment names in parentheses. */
  hub: string[];
}

const FILES = import.meta.glob<string>("../../../../configs/*.yaml", { query: "?raw", import: "default", eager: true });

export const value = (config: Config | null, key: string) => {
  const found = config?.get(key.split("."));
  return found ? (found.text ?? found.source) : null;
};

const firstSentence = (text: string) => /^.*?\.(?= |$)/.exec(text)?.[0] ?? text;

function template(path: string, file: string): Template {
  const text = file.replace(/^# yaml-language-server.*\n/, "");
  const config = Config.parse(text);
  const comment = /^(?:#.*\n)+/.exec(text)?.[0] ?? "";
  const words = comment.replace(/^# ?/gm, "").replaceAll("\n", " ").trim();
  const inParentheses = [...words.matchAll(/\(([^)]*)\)/g)].map(([, inside]) => inside!);
  const frames = value(config, "data.num_frames");
  let goal: Goal = "text";
  if (value(config, "data.resolution") !== null) goal = frames === null ? "image" : "video";
  return {
    name: path.slice(path.lastIndexOf("/") + 1, -".yaml".length),
    about: firstSentence(words),
    text,
    goal,
    model: value(config, "model.name_or_path"),
    hub: inParentheses.flatMap((inside) => inside.match(/[\w-]+\/[\w.-]*\w/g) ?? []),
  };
}

export const TEMPLATES: Template[] = Object.entries(FILES).map(([path, file]) => template(path, file));

/** The config of a small model from nothing. */
export const freshText = () => TEMPLATES.find((template) => template.name === "small")?.text ?? "";

/** What is left of a path or of a name on the hub if only its last part counts. */
const base = (name: string) => name.split("/").at(-1)!.toLowerCase();

/** The template that was written for a model, to teach it texts. */
function templateFor(goal: Goal, model: string): Template | undefined {
  const names = (template: Template) => [template.model, ...template.hub].filter((name) => name !== null).map(base);
  const texts = TEMPLATES.filter((template) => !/^preference:/m.test(template.text));
  return texts.find((template) => template.goal === goal && names(template).includes(base(model)));
}

/** The name of a run that has none yet. */
export const UNNAMED = "my-lora";

const MEDIA = (frames: string) => `name: ${UNNAMED}

model:
  name_or_path: model

adapter:
  r: 16
  lora_alpha: 16

data:
  path: data
  resolution: 512
${frames}  trigger_word: ohwx
  caption_dropout: 0.05
  validation_fraction: 0.1

train:
  max_steps: 2000
  per_device_train_batch_size: 1
  gradient_checkpointing: true
  learning_rate: 0.0001
  lr_scheduler_type: constant
  warmup_ratio: 0.01
  eval_steps: 100
  max_eval_samples: 8
  save_steps: 200
  save_total_limit: 4

sample:
  sample_steps: 200
  prompts:
    - ohwx sits on a bench in a park
`;

const LANGUAGE = `name: ${UNNAMED}

model:
  name_or_path: model

adapter:
  r: 16
  lora_alpha: 32
  target_modules: all-linear

data:
  path: data
  block_size: 512

train:
  max_steps: 500
  per_device_train_batch_size: 4
  learning_rate: 0.0002
  warmup_ratio: 0.02
  eval_steps: 100
  max_eval_samples: 64
  save_steps: 100
  save_total_limit: 2

sample:
  sample_steps: 100
  max_new_tokens: 100
`;

const GENERAL: Record<Goal, string> = {
  image: MEDIA(""),
  video: MEDIA("  num_frames: [1, 33]\n  frame_extraction: head\n"),
  chat: LANGUAGE,
  text: LANGUAGE,
};

/** A config with other values; `null` removes a key. A key that cannot be changed as it is written stays. */
export function withKeys(text: string, keys: Record<string, string | null>): string {
  let made = text;
  for (const [key, value] of Object.entries(keys)) {
    const path = key.split(".");
    const config = Config.parse(made);
    if (value !== null || config?.get(path)) made = config?.set(path, value) ?? made;
  }
  return made;
}

/** A path as a config has it, where `$$` is a `$`. */
export const written = (path: string) => scalar(path.replaceAll("$", "$$$$"));

/** The config to begin with. */
export function begin(goal: Goal, model: string, keys: Record<string, string | null>): string {
  const text = templateFor(goal, model)?.text ?? GENERAL[goal];
  const name = model.startsWith("/") ? written(model) : scalar(model);
  return withKeys(text, { "model.name_or_path": name, ...keys });
}

/** Models on the hub for a goal, with what the template for it says of pictures and videos. */
export function onHub(goal: Goal): { name: string; about: string | null }[] {
  const isText = goal === "chat" || goal === "text";
  return TEMPLATES.filter((template) => template.goal === (isText ? "text" : goal)).flatMap(({ hub, about }) =>
    hub.map((name) => ({ name, about: isText ? null : about.replace(/ \([\w-]+\/[^)]*\)/g, "") })),
  );
}

/** Whether a model is one for a goal. */
export function suits(goal: Goal, { makes }: FoundModel): boolean {
  return makes === goal || (goal === "text" && makes === "chat");
}

/** Whether and how a model fits into memory. */
export interface Verdict {
  text: string;
  level: "completed" | "info" | "warning" | "failed";
  /** The keys that make it fit. */
  keys: Record<string, string | null>;
  /** Why it is not known. */
  why?: string;
}

const FORMATS = { int8: " in 8 bits", nf4: " in 4 bits" };

/** What a measured step says, by its memory. */
export function verdict({ memory, ways }: Fit): Verdict {
  const way = ways.find(({ fits }) => fits);
  if (!way) {
    const least = ways.reduce((least, { need }) => Math.min(least, need), Infinity);
    return { text: `too large: needs ${bytes(least)} of ${bytes(memory)}`, level: "failed", keys: {} };
  }
  const { quantization, offload, need } = way;
  const format = quantization === null ? "" : FORMATS[quantization];
  const keys = { "model.quantization": quantization, "model.offload": offload ? "auto" : null };
  const text = `${offload ? `streamed${format}, slower` : `fits${format}`}: ${bytes(need)} of ${bytes(memory)}`;
  return { text, level: offload ? "warning" : format ? "info" : "completed", keys };
}

/** A key in plain words. */
export interface Question {
  path: string[];
  label: string;
  about: string;
}

const ask = (key: string, label: string, about: string): Question => ({ path: key.split("."), label, about });
const NAME = ask("name", "Name", "The folder of the run is called like this.");
const STEPS = ask("train.max_steps", "Steps", "How long it trains. Checkpoints on the way are kept: a LoRA is often best before the end.");
const RATE = ask(
  "train.learning_rate",
  "Learning rate",
  "How far each step goes. Too high and the model breaks, too low and it learns nothing.",
);
const RANK = ask("adapter.r", "LoRA rank", "How much the LoRA can hold: 8 to 16 for a person or a thing, 32 for a style or much data.");
const TRIGGER = ask(
  "data.trigger_word",
  "Trigger word",
  "A word that prompts call the result by. A rare one, so that it means nothing else yet.",
);
const SIZE = ask("data.resolution", "Size", "The side of a square of the same area, in pixels. Half of it is about four times as fast.");
const FRAMES = ask("data.num_frames", "Frames per clip", "One or several lengths. Longer clips need more memory.");
const PROMPTS = ask("sample.prompts", "Prompts for samples", "What is generated on the way, to judge the run by.");
const LENGTH = ask(
  "data.block_size",
  "Length in tokens",
  "Longer examples are cut off here. Twice the length needs about twice the memory.",
);
const batch = (what: string) =>
  ask("train.per_device_train_batch_size", `${what} per step`, "The batch size. More make steps steadier, and need more memory.");
const HELD_OUT = ask(
  "data.validation_fraction",
  "Held out",
  "The share of the data that is not trained on, and shows whether the model only memorises.",
);
const WIDTH = ask("model.hidden_size", "Width of the model", "Wider models learn more, and train more slowly.");

/** The eight keys that matter. */
export function questions(goal: Goal, isFresh: boolean): Question[] {
  const size = isFresh ? WIDTH : RANK;
  switch (goal) {
    case "image":
      return [NAME, TRIGGER, STEPS, RATE, size, SIZE, batch("Pictures"), PROMPTS];
    case "video":
      return [NAME, TRIGGER, STEPS, RATE, size, SIZE, FRAMES, PROMPTS];
    case "chat":
      return [NAME, STEPS, RATE, size, LENGTH, batch("Conversations"), HELD_OUT, PROMPTS];
    case "text":
      return [NAME, STEPS, RATE, size, LENGTH, batch("Texts"), HELD_OUT, PROMPTS];
  }
}

/** The goal of a config that was not begun with one. */
export function goalOf(text: string): Goal {
  const config = Config.parse(text);
  if (value(config, "data.resolution") === null) return "text";
  return value(config, "data.num_frames") === null ? "image" : "video";
}

/** Whether a config trains a model from nothing. */
export const isFresh = (text: string) => value(Config.parse(text), "model.name_or_path") === null;
