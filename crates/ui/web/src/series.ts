// The curves of a run on the page: decimated data from the server, and the records since.
import type { Curves, Latest, Metrics, RunEvent } from "./api";

/** The values of one metric over the steps, with bounds where several steps share a point. */
export interface Series {
  steps: number[];
  mean: (number | null)[];
  min: (number | null)[];
  max: (number | null)[];
}

export interface Kept {
  inode: number;
  offset: number;
  series: Map<string, Series>;
  events: RunEvent[];
  droppedEvents: number;
  unreadable: number;
  latest: Latest;
}

/** The number of points after which the server has to decimate again. */
const MOST = 4000;

function take(series: Map<string, Series>, curves: Curves) {
  for (const curve of curves.curves) {
    const banded = curve.min.length > 0;
    series.set(curve.name, {
      steps: [...curves.steps],
      mean: curve.mean,
      min: banded ? curve.min : [...curve.mean],
      max: banded ? curve.max : [...curve.mean],
    });
  }
}

export function keep(metrics: Metrics): Kept {
  const series = new Map<string, Series>();
  take(series, metrics.train);
  take(series, metrics.eval);
  return {
    inode: metrics.inode,
    offset: metrics.offset,
    series,
    events: metrics.events,
    droppedEvents: metrics.dropped_events,
    unreadable: metrics.unreadable_lines,
    latest: metrics.latest,
  };
}

type Record_ = Record<string, unknown>;

function add(kept: Kept, name: string, step: number, value: unknown) {
  if (typeof value !== "number" || !Number.isFinite(value)) return;
  let series = kept.series.get(name);
  if (!series) {
    series = { steps: [], mean: [], min: [], max: [] };
    kept.series.set(name, series);
  }
  const last = series.steps.length - 1;
  if (last >= 0 && series.steps[last]! >= step) {
    if (series.steps[last] !== step) return;
    series.mean[last] = value;
    series.min[last] = Math.min(series.min[last] ?? value, value);
    series.max[last] = Math.max(series.max[last] ?? value, value);
    return;
  }
  series.steps.push(step);
  series.mean.push(value);
  series.min.push(value);
  series.max.push(value);
}

/** Adds new records; returns false if the curves should be loaded again. */
export function follow(kept: Kept, records: Record_[]): boolean {
  for (const record of records) {
    const step = Number(record["step"] ?? 0);
    switch (record["kind"]) {
      case "train": {
        const memory = (record["memory"] ?? {}) as Record_;
        for (const name of ["loss", "learning_rate", "grad_norm", "tokens_per_second"]) {
          add(kept, name, step, record[name]);
        }
        for (const name of ["live", "held", "live_peak", "held_peak", "resident"]) {
          add(kept, name, step, memory[name]);
        }
        break;
      }
      case "eval":
        add(kept, "eval_loss", step, record["eval_loss"]);
        break;
      case "samples":
        break;
      case "rolled_back":
        return false;
      default:
        kept.events.push({ step, kind: String(record["kind"]), record });
    }
  }
  return [...kept.series.values()].every((series) => series.steps.length < MOST);
}

/** Exponential moving average; a `share` of 0 changes nothing. */
export function smooth(values: (number | null)[], share: number): (number | null)[] {
  if (share <= 0) return values;
  let mean: number | null = null;
  return values.map((value) => {
    if (value === null) return null;
    mean = mean === null ? value : share * mean + (1 - share) * value;
    return mean;
  });
}
