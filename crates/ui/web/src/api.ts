// The server's API, as openapi.json describes it.

export type State = "running" | "completed" | "stopped" | "failed" | "interrupted";

export interface Latest {
  step: number;
  loss: number | null;
  eval_loss: number | null;
  learning_rate: number | null;
  grad_norm: number | null;
  tokens_per_second: number | null;
  memory: number | null;
}

export interface Overview {
  name: string;
  state: State;
  stopping?: boolean;
  process?: { pid: number } | null;
  error?: string | null;
  latest: Latest;
  max_steps: number | null;
  changed: number | null;
}

export interface Detail extends Overview {
  path: string;
  config: string;
  summary: Record<string, unknown> | null;
  /** Null until the run has begun. */
  facts: Facts | null;
}

/** What the trainer knows of a run. */
export interface Facts {
  kind: "language" | "diffusion";
  architecture: string | null;
  expected_memory: Record<string, unknown>;
  /** How `surefoot generate` loads the result; null until there is one. */
  generate: string[] | null;
  /** The same for the model that an adapter was trained on. */
  generate_base: string[] | null;
  commands: { what: string; line: string }[];
}

export interface GpuMemory {
  used: number | null;
  total: number | null;
}

/** Values that the driver does not report are null. */
export interface Gpu {
  card: string;
  slot: string | null;
  name: string | null;
  asleep: boolean;
  vram: GpuMemory;
  gtt: GpuMemory;
  busy: number | null;
  clock: number | null;
  watts: number | null;
  temperature: number | null;
  hottest: number | null;
  runs: { run: string; pid: number; vram: number | null; gtt: number | null }[];
}

export interface Curve {
  name: string;
  mean: (number | null)[];
  min: (number | null)[];
  max: (number | null)[];
}

export interface Curves {
  width: number;
  steps: number[];
  curves: Curve[];
}

export interface RunEvent {
  step: number;
  kind: string;
  /** Null if the record is very long. */
  record: Record<string, unknown> | null;
}

export interface Metrics {
  inode: number;
  offset: number;
  train: Curves;
  eval: Curves;
  events: RunEvent[];
  dropped_events: number;
  unreadable_lines: number;
  latest: Latest;
}

export interface SampleSet {
  step: number;
  samples: { prompt: string; text: string; files?: string[] }[];
}

export interface Samples {
  steps: number[];
  sets: SampleSet[];
}

export interface Comparison {
  runs: Overview[];
  differences: { key: string; values: (string | null)[] }[];
  unreadable: string[];
}

export interface Finding {
  id: string;
  severity: string;
  title: string;
  seen: string;
  why: string;
  fix: string[];
  source: string;
}

export interface Doctor {
  report: { findings: Finding[]; gpus: Record<string, unknown>[]; env: Record<string, string> };
  verdict: string;
  fix_script: string;
  has_errors: boolean;
}

export interface Match {
  title: string;
  cause: string;
  fix: string[];
  source: string;
  line?: string;
}

export interface Explanation {
  matches: Match[];
}

export interface Job {
  id: number;
  name: string;
  added: number;
  force: boolean;
  set: string[];
  /** If several jobs run at once: the device that was chosen for it. */
  device: string | null;
  /** It did not fit next to other runs, and needs a device to itself. */
  alone: boolean;
  work: { kind: "train" | "resume"; run?: string; source?: string };
  state: "waiting" | "checking" | "running" | "ended";
  how?: "completed" | "stopped" | "failed" | "refused";
  error?: string | null;
  run?: string | null;
  at?: number;
}

export type AtOnce = "one" | "per_gpu" | "memory";

export interface Queue {
  paused: boolean;
  working: boolean;
  at_once: AtOnce;
  jobs: Job[];
  unreadable: string[];
}

export interface LogPart {
  inode: number;
  from: number;
  to: number;
  text: string;
}

/** The settings of a new job. */
export interface NewJob {
  config?: string;
  like?: string;
  resume?: string;
  name?: string;
  set?: Record<string, string>;
  force?: boolean;
}

export interface ConfigProblem {
  source: string;
  line: number;
  column: number;
  message: string;
  help: string | null;
}

export interface DryRun {
  environment: { device: string; model: string; data: string };
  trained_parameters: number;
  max_steps: number;
  seconds: number;
  estimated_seconds: number;
  memory_estimate: Record<string, unknown>;
  memory_plan: unknown;
  advice: string[];
}

export interface Asked<T> {
  found: T | null;
  error: string | null;
}

/** An error response of the server, with its message. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

async function request(path: string, init?: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...init });
  } catch {
    throw new Refused(0, "the server does not respond: is `surefoot ui` still running?");
  }
  if (response.ok) return response;
  const text = await response.text();
  let message = text || response.statusText;
  try {
    message = (JSON.parse(text) as { error: string }).error;
  } catch {
    // Not an error message of this server.
  }
  throw new Refused(response.status, message);
}

export async function read<T>(path: string): Promise<T> {
  return (await request(path)).json() as Promise<T>;
}

export async function readText(path: string): Promise<string> {
  return (await request(path)).text();
}

export async function send<T>(method: string, path: string, body?: unknown): Promise<T | null> {
  const init: RequestInit = { method };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { "content-type": "application/json" };
  }
  const response = await request(path, init);
  return response.status === 204 ? null : ((await response.json()) as T);
}

/** Sends a request, and passes on each line of the response as it arrives. */
export async function sendForStream(path: string, body: unknown, signal: AbortSignal, onLine: (line: string) => void) {
  const response = await request(path, {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "content-type": "application/json" },
    signal,
  });
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop()!;
    for (const line of lines) onLine(line);
  }
}

export const runPath = (name: string, rest = "") => `/api/runs/${encodeURIComponent(name)}${rest}`;
