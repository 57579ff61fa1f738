// One run, live.
import { useEffect, useRef, useState } from "preact/hooks";
import { read, runPath, send, type Detail, type Explanation, type Metrics, type Overview, type Samples } from "../api";
import { Chart, type Line, type Mark } from "../chart";
import { mark, sentence } from "../events";
import { bytes, duration, number, whole } from "../format";
import { saw } from "../notify";
import { follow, keep, type Kept } from "../series";
import { Badge, Confirm, Copy, Figure, Problem, Progress, Section } from "../widgets";
import { AskPart } from "./ask";
import { Gpus } from "./gpus";
import { Log } from "./log";
import { SamplesPart } from "./samples";

/** Follows a run live; `tick` counts the updates. */
function useRun(name: string, range: [number, number] | null) {
  const [detail, setDetail] = useState<Detail | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [offline, setOffline] = useState(false);
  const [gone, setGone] = useState(false);
  const [, setTick] = useState(0);
  const kept = useRef<Kept | null>(null);
  const part = useRef<Kept | null>(null);
  /** The times at which steps were seen, to estimate the remaining time. */
  const seen = useRef<[number, number][]>([]);
  const [samples, setSamples] = useState<Samples | null>(null);

  useEffect(() => {
    let source: EventSource | null = null;
    let retry: ReturnType<typeof setTimeout> | undefined;
    let ended = false;
    const tick = () => setTick((count) => count + 1);
    const loadSamples = () => read<Samples>(runPath(name, "/samples")).then((found) => !ended && setSamples(found), () => {});
    const start = async () => {
      source?.close();
      try {
        const [found, metrics] = await Promise.all([
          read<Detail>(runPath(name)),
          read<Metrics>(runPath(name, "/curves")),
        ]);
        if (ended) return;
        setDetail(found);
        setProblem(null);
        kept.current = keep(metrics);
        loadSamples();
        source = new EventSource(runPath(name, `/stream?inode=${metrics.inode}&offset=${metrics.offset}`));
        source.addEventListener("state", (event) => {
          const overview = JSON.parse(event.data) as Overview;
          setOffline(false);
          saw([overview]);
          seen.current = [...seen.current, [performance.now() / 1000, overview.latest.step] as [number, number]].slice(-120);
          setDetail((before) => {
            // The files in the folder change with the state: the summary, the memory estimate.
            if (before && (before.state !== overview.state || before.facts === null)) {
              read<Detail>(runPath(name)).then((found) => !ended && setDetail(found), () => {});
            }
            if (!before) return before;
            const { path, config, summary, facts } = before;
            return { path, config, summary, facts, ...overview };
          });
        });
        source.addEventListener("records", (event) => {
          const records = JSON.parse(event.data) as Record<string, unknown>[];
          if (records.some((record) => record["kind"] === "samples")) loadSamples();
          if (kept.current && !follow(kept.current, records)) void start();
          tick();
        });
        source.addEventListener("anew", () => void start());
        source.addEventListener("gone", () => {
          source?.close();
          setGone(true);
        });
        source.onerror = () => setOffline(true);
        tick();
      } catch (error) {
        if (ended) return;
        setProblem((error as Error).message);
        // A run that the queue has just started has no folder yet.
        retry = setTimeout(start, 2000);
      }
    };
    void start();
    return () => {
      ended = true;
      clearTimeout(retry);
      source?.close();
    };
  }, [name]);

  // A range of steps is loaded in more detail than the whole run.
  useEffect(() => {
    part.current = null;
    if (!range) return;
    let ended = false;
    read<Metrics>(runPath(name, `/curves?from=${range[0]}&to=${range[1]}`)).then(
      (metrics) => {
        if (ended) return;
        part.current = keep(metrics);
        setTick((count) => count + 1);
      },
      () => {},
    );
    return () => {
      ended = true;
    };
  }, [name, range?.[0], range?.[1]]);

  const left = () => {
    const [first, last] = [seen.current[0], seen.current.at(-1)];
    if (!detail || detail.state !== "running" || detail.max_steps === null || !first || !last) return null;
    const speed = (last[1] - first[1]) / (last[0] - first[0]);
    return speed > 0 ? (detail.max_steps - last[1]) / speed : null;
  };
  return { detail, problem, offline, gone, kept: kept.current, shown: part.current ?? kept.current, samples, left: left() };
}

function Why({ name }: { name: string }) {
  const [found, setFound] = useState<{ explanation: Explanation | null } | null>(null);
  useEffect(() => {
    read<{ explanation: Explanation | null }>(runPath(name, "/explain")).then(setFound, () => {});
  }, [name]);
  const matches = found?.explanation?.matches ?? [];
  if (matches.length === 0) return null;
  return (
    <Section title="Cause of the failure">
      {matches.map((match) => (
        <article class="finding" key={match.source + match.cause}>
          <p>{match.cause}</p>
          {match.fix.length > 0 && <Copy text={match.fix.join("\n")} />}
          <p class="note">
            <a href={match.source} rel="noreferrer noopener" target="_blank">
              {match.source}
            </a>
          </p>
        </article>
      ))}
    </Section>
  );
}

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

export function RunView({ name }: { name: string }) {
  const [range, setRange] = useState<[number, number] | null>(null);
  const [smoothing, setSmoothing] = useState(0);
  const [logarithmic, setLogarithmic] = useState(false);
  const [refused, setRefused] = useState<string | null>(null);
  const [asked, setAsked] = useState("");
  const { detail, problem, offline, gone, kept, shown, samples, left } = useRun(name, range);
  if (gone) {
    return (
      <main>
        <h1>{name}</h1>
        <p class="problem" role="status">
          The folder of this run was removed. <a href="#/">All runs</a>
        </p>
      </main>
    );
  }
  if (!detail || !kept || !shown) {
    return (
      <main>
        <h1>{name}</h1>
        {problem ? <Problem text={problem} /> : <p class="note">Reading …</p>}
      </main>
    );
  }
  const act = async (method: string, path: string, then?: () => void, body?: unknown) => {
    try {
      await send(method, path, body);
      setRefused(null);
      then?.();
    } catch (error) {
      setRefused((error as Error).message);
    }
  };
  const latest = kept.latest.step >= detail.latest.step ? kept.latest : detail.latest;
  const now = { ...latest, ...detail.latest };
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
  const level = typeof peak === "number" ? { level: { label: "estimated peak", value: peak } } : {};
  const step = (which: 0 | 1) => (value: number) => {
    const steps = kept.series.get("loss")?.steps ?? [];
    const next: [number, number] = range ?? [steps[0] ?? 0, steps.at(-1) ?? 1];
    const made: [number, number] = which === 0 ? [value, next[1]] : [next[0], value];
    if (made[0] < made[1]) setRange(made);
  };
  const running = detail.state === "running";
  return (
    <main>
      <p class="crumb">
        <a href="#/">Runs</a>
      </p>
      <div class="head">
        <h1>{name}</h1>
        <div class="tools">
          <Badge run={detail} />
          {running && !detail.stopping && (
            <>
              <button type="button" onClick={() => act("POST", runPath(name, "/save"), () => setAsked("A checkpoint will be saved after this step."))}>
                Save now
              </button>
              <button type="button" onClick={() => act("POST", runPath(name, "/sample"), () => setAsked("Samples will be generated after this step."))}>
                Sample now
              </button>
            </>
          )}
          <a class="button" href={`#/data?like=${encodeURIComponent(name)}`}>
            Data
          </a>
          <a class="button" href={`#/new?like=${encodeURIComponent(name)}`}>
            Duplicate
          </a>
          {!running && detail.state !== "completed" && (
            <button type="button" onClick={() => act("POST", "/api/queue", () => (location.hash = "#/queue"), { resume: name })}>
              Resume
            </button>
          )}
          {running && (
            <button type="button" disabled={detail.stopping ?? false} onClick={() => act("POST", runPath(name, "/stop"))}>
              {detail.stopping ? "Saving …" : "Stop and save"}
            </button>
          )}
          {!running && (
            <Confirm
              what="Remove"
              question="Remove the run and all its files?"
              onYes={() => act("DELETE", runPath(name), () => (location.hash = "#/"))}
            />
          )}
        </div>
      </div>
      <Problem text={refused} />
      <p class="note" role="status">
        {asked}
      </p>
      {offline && (
        <p class="problem" role="status">
          No connection to <code>surefoot ui</code>. The run continues.
        </p>
      )}
      {detail.error && (
        <pre class="problem" role="alert" tabIndex={0}>
          {detail.error}
        </pre>
      )}
      <div class="line">
        <Progress run={detail} />
        {left !== null && <span class="note">{duration(left)} left</span>}
        <code class="path">{detail.path}</code>
      </div>
      <dl class="figures">
        <Figure name="Training loss" value={number(now.loss)} />
        <Figure name="Held-out loss" value={number(now.eval_loss)} />
        <Figure name="Learning rate" value={number(now.learning_rate, 3)} />
        <Figure name="Gradient norm" value={number(now.grad_norm, 3)} />
        <Figure name="Tokens per second" value={whole(now.tokens_per_second)} />
        <Figure name="Memory" value={bytes(now.memory)} />
      </dl>
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
          Steps from{" "}
          <StepInput placeholder="first" value={range?.[0]} onCommit={step(0)} />
        </label>
        <label>
          to <StepInput placeholder="last" value={range?.[1]} onCommit={step(1)} />
        </label>
        <button type="button" disabled={!range} onClick={() => setRange(null)}>
          All steps
        </button>
      </fieldset>
      {!kept.series.has("loss") && (
        <p class="note">
          {running ? "No step has been logged yet: the run is starting." : "The run logged no step."}
        </p>
      )}
      <div class="charts">
        <div class="whole">
          <Chart
            title="Loss"
            height={300}
            lines={[
              of("training", "--one", "loss", { smoothed: true }),
              of("held out", "--two", "eval_loss"),
            ]}
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
        <Chart title="Memory of this run" inBytes format={bytes} lines={memory} {...level} {...common} />
      </div>
      {!counted && kept.series.has("resident") && (
        <p class="note">The memory of tensors is unknown: the allocator of this run keeps no statistics.</p>
      )}
      {running && <Gpus />}
      {detail.state === "failed" && <Why name={name} />}
      {samples && <SamplesPart run={name} samples={samples} />}
      {(kept.events.length > 0 || kept.unreadable > 0) && (
        <Section title="Events">
          {kept.unreadable > 0 && (
            <p class="note">{kept.unreadable} damaged lines of metrics.jsonl were skipped.</p>
          )}
          {kept.droppedEvents > 0 && <p class="note">{kept.droppedEvents} earlier events are not shown.</p>}
          <ul class="events">
            {kept.events
              .slice(-100)
              .reverse()
              .map((event, index) => (
                <li key={`${event.step}-${index}`}>
                  <b>step {event.step.toLocaleString("en")}</b> {sentence(event)}{" "}
                  <code>{JSON.stringify(event.record)}</code>
                </li>
              ))}
          </ul>
        </Section>
      )}
      {!running && detail.facts?.generate && <AskPart run={name} facts={detail.facts} />}
      {detail.facts && detail.facts.commands.length > 0 && (
        <Section title="Commands" note="For a terminal, valid in any folder.">
          {detail.facts.commands.map(({ what, line }) => (
            <p key={what}>
              To {what}:
              <pre tabIndex={0}>{line}</pre>
            </p>
          ))}
        </Section>
      )}
      <Log path={runPath(name, "/log")} live={running} />
      <details>
        <summary>Config</summary>
        <pre tabIndex={0}>{detail.config}</pre>
      </details>
      {detail.summary && (
        <details>
          <summary>Summary</summary>
          <pre tabIndex={0}>{JSON.stringify(detail.summary, null, 2)}</pre>
        </details>
      )}
    </main>
  );
}
