// A browser notification when a run ends, while the page is open in a tab.
import { signal } from "@preact/signals";
import { type Overview, type RunList, read } from "./api";
import { number } from "./format";

const KEY = "notify";
const possible = "Notification" in globalThis;

export const wanted = signal(possible && localStorage.getItem(KEY) === "yes" && Notification.permission === "granted");
/** Why notifications are not possible. */
export const refused = signal<string | null>(null);

export async function want(on: boolean) {
  refused.value = null;
  if (on && !possible) {
    refused.value = "This browser allows notifications only for pages on localhost or over HTTPS.";
    on = false;
  }
  if (on && (await Notification.requestPermission()) !== "granted") {
    refused.value = "The browser does not allow this page to show notifications.";
    on = false;
  }
  localStorage.setItem(KEY, on ? "yes" : "no");
  wanted.value = on;
}

const before = new Map<string, string>();

/** Remembers the states of runs, and shows a notification for those that have ended since. */
export function saw(runs: Overview[]) {
  for (const run of runs) {
    const ended = before.get(run.name) === "running" && run.state !== "running";
    before.set(run.name, run.state);
    if (!ended || !wanted.value) continue;
    try {
      const body = `step ${run.latest.step.toLocaleString("en")}, loss ${number(run.latest.loss)}`;
      new Notification(`${run.name}: ${run.state}`, { body, tag: run.name });
    } catch {
      refused.value = "This browser shows notifications only for installed apps.";
      wanted.value = false;
    }
  }
}

/** A hidden tab has no stream: it asks, if somebody wants to be told. */
const PERIOD = 15_000;

setInterval(() => {
  if (document.visibilityState === "visible" || !wanted.value) return;
  read<RunList>("/api/runs").then(
    ({ runs }) => saw(runs),
    () => {},
  );
}, PERIOD);
