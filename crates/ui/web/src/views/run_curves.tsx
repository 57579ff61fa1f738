// The curves of a run, and what is shown of them.
import { useEffect, useState } from "preact/hooks";
import type { Detail } from "../api";
import { Chart, type Line, type Mark } from "../chart";
import { mark } from "../events";
import { bytes, whole } from "../format";
import type { LiveRun } from "../live_run";
import type { Kept } from "../series";
import { Section } from "../widgets";

/** An input for a step. The typed text survives a re-render, and is applied once it is confirmed. */
function StepInput(props: { placeholder: string; value: number | undefined; onCommit: (step: number) => void }) {
  const [typed, setTyped] = useState<string | null>(null);
  const commit = () => {
    const value = Number(typed);
    setTyped(null);
    if (typed && Number.isInteger(value) && value >= 0) props.onCommit(value);
  };
  return (
    <input
      type="number"
      min="0"
      placeholder={props.placeholder}
      value={typed ?? props.value ?? ""}
      onInput={(event) => setTyped(event.currentTarget.value)}
      onChange={commit}
    />
  );
}

/** A budget that is higher than so many times the peak is left out: the curves would be flat. */
const IN_SIGHT = 4;

/** The memory that there was for the tensors of a run, if it is known and near. */
function budget(detail: Detail, peak: number) {
  const known = detail.facts?.expected_memory ?? {};
  const parts = ["weights", "optimizer", "averages", "free"].map((name) => known[name]);
  if (!parts.every((part) => typeof part === "number")) return [];
  const value = parts.reduce((sum, part) => sum + part, 0);
  return value <= IN_SIGHT * peak ? [{ label: "available", value }] : [];
}

export function CurvesPart({ run, detail, kept }: { run: LiveRun; detail: Detail; kept: Kept }) {
  const [range, setRange] = useState<[number, number] | null>(null);
  const [smoothing, setSmoothing] = useState(0);
  const [logarithmic, setLogarithmic] = useState(false);
  useEffect(() => void run.show(range), [run, range]);
  const shown = run.part.value ?? kept;
  const running = detail.state === "running";
  const of = (label: string, colour: string, series: string, rest: Partial<Line> = {}): Line => ({
    label,
    colour,
    series: shown.series.get(series),
    ...rest,
  });
  const marks: Mark[] = kept.events
    .flatMap((event) => {
      const label = mark(event);
      return label === null ? [] : [{ step: event.step, label }];
    })
    .slice(-40);
  const common = { range, onRange: setRange, marks };
  const peak = detail.facts?.expected_memory["peak"];
  const counted = kept.series.has("live");
  const memory = counted
    ? [
        of("allocated, peak", "--one", "live_peak"),
        of("reserved, peak", "--two", "held_peak"),
        of("process", "--three", "resident", { dashed: true }),
      ]
    : [of("process", "--one", "resident")];
  const levels = typeof peak === "number" ? [{ label: "estimated peak", value: peak }, ...budget(detail, peak)] : [];
  const step = (which: 0 | 1) => (value: number) => {
    const steps = kept.series.get("loss")?.steps ?? [];
    const next: [number, number] = range ?? [steps[0] ?? 0, steps.at(-1) ?? 1];
    const made: [number, number] = which === 0 ? [value, next[1]] : [next[0], value];
    if (made[0] < made[1]) setRange(made);
  };
  return (
    <Section title="Curves">
      <fieldset class="controls">
        <legend class="hidden">Curves</legend>
        <label>
          Smoothing{" "}
          <input
            type="range"
            min="0"
            max="0.99"
            step="0.01"
            value={smoothing}
            onInput={(event) => setSmoothing(Number(event.currentTarget.value))}
          />
        </label>
        <label>
          <input type="checkbox" checked={logarithmic} onChange={() => setLogarithmic(!logarithmic)} /> logarithmic loss
        </label>
        <label>
          Steps from <StepInput placeholder="first" value={range?.[0]} onCommit={step(0)} />
        </label>
        <label>
          to <StepInput placeholder="last" value={range?.[1]} onCommit={step(1)} />
        </label>
        <button type="button" disabled={!range} onClick={() => setRange(null)}>
          All steps
        </button>
      </fieldset>
      {!kept.series.has("loss") && (
        <p class="note">{running ? "No step has been logged yet: the run is starting." : "The run logged no step."}</p>
      )}
      <div class="charts">
        <div class="whole">
          <Chart
            title="Loss"
            height={300}
            lines={[of("training", "--one", "loss", { smoothed: true }), of("held out", "--two", "eval_loss")]}
            smoothing={smoothing}
            logarithmic={logarithmic}
            {...common}
          />
        </div>
        <Chart title="Learning rate" lines={[of("learning rate", "--one", "learning_rate")]} {...common} />
        <Chart
          title="Gradient norm"
          lines={[of("before clipping", "--one", "grad_norm", { smoothed: true })]}
          smoothing={smoothing}
          {...common}
        />
        <Chart
          title="Tokens per second"
          format={whole}
          lines={[of("tokens/s", "--one", "tokens_per_second", { smoothed: true })]}
          smoothing={smoothing}
          {...common}
        />
        <Chart title="Memory of this run" inBytes format={bytes} lines={memory} levels={levels} {...common} />
      </div>
      {!counted && kept.series.has("resident") && (
        <p class="note">The memory of tensors is unknown: the allocator of this run keeps no statistics.</p>
      )}
    </Section>
  );
}
