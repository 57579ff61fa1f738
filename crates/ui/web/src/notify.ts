// A notification of the browser when a run ends, while the list or the run is open somewhere.
import { signal } from "@preact/signals";
import type { Overview } from "./api";
import { number } from "./format";

const KEY = "notify";
const possible = "Notification" in globalThis;

export const wanted = signal(possible && localStorage.getItem(KEY) === "yes" && Notification.permission === "granted");
/** Why there will be none. */
export const refused = signal<string | null>(null);

export async function want(on: boolean) {
  refused.value = null;
  if (on && !possible) {
    refused.value = "This browser shows notifications only to pages of this machine, or over https.";
    on = false;
  }
  if (on && (await Notification.requestPermission()) !== "granted") {
    refused.value = "The browser does not let this page show notifications.";
    on = false;
  }
  localStorage.setItem(KEY, on ? "yes" : "no");
  wanted.value = on;
}

const before = new Map<string, string>();

/** Takes note of how runs stand, and tells of those that have ended since. */
export function saw(runs: Overview[]) {
  for (const run of runs) {
    const ended = before.get(run.name) === "running" && run.state !== "running";
    before.set(run.name, run.state);
    if (!ended || !wanted.value) continue;
    try {
      const body = `step ${run.latest.step.toLocaleString("en")}, loss ${number(run.latest.loss)}`;
      new Notification(`${run.name}: ${run.state}`, { body, tag: run.name });
    } catch {
      refused.value = "This browser shows notifications of installed apps only.";
      wanted.value = false;
    }
  }
}
