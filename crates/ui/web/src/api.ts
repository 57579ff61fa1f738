// The server's API: requests, and what the server passes on from the doctor and the trainer. All other types are
// generated.
import type { Overview } from "./api_types";

export type * from "./api_types";

export type State = Overview["state"];

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

/** A model on this machine, as the trainer lists it. */
export interface FoundModel {
  /** What `model.name_or_path` calls it. */
  name: string;
  place: "folder" | "hub" | "cache";
  makes: "text" | "chat" | "image" | "video";
  architecture: string;
  /** Bytes of the weights that training loads at once. */
  bytes: number;
}

export interface FoundModels {
  models: FoundModel[];
  /** The device that a run takes if its config names none, and the bytes of its memory. */
  device: string;
  memory: number | null;
}

/** How a model fits into memory: what was tried, until something fitted. */
export interface Fit {
  device: string;
  /** Bytes of its memory. */
  memory: number;
  ways: { quantization: "int8" | "nf4" | null; offload: boolean; need: number; fits: boolean }[];
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

/** Sends a file as it is. */
export async function sendFile(path: string, file: File) {
  await request(path, { method: "PUT", body: file, headers: { "content-type": "application/octet-stream" } });
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
