// One run, live.
import { useEffect, useMemo, useState } from "preact/hooks";
import { runPath, send } from "../api";
import { bytes, duration, number, whole } from "../format";
import { LiveRun } from "../live_run";
import { Badge, Confirm, Figure, Offline, Problem, Progress, useTitle } from "../widgets";
import { AskPart } from "./ask";
import { Gpus } from "./gpus";
import { Log } from "./log";
import { NotesPart } from "./notes";
import { CurvesPart } from "./run_curves";
import { EventsPart, Why } from "./run_events";
import { columnsOf, SamplesPart } from "./samples";
import { SearchPart } from "./search";

export function RunView({ name }: { name: string }) {
  const [refused, setRefused] = useState<string | null>(null);
  const [asked, setAsked] = useState("");
  const run = useMemo(() => new LiveRun(name), [name]);
  useEffect(() => () => run.close(), [run]);
  useTitle(name);
  const [detail, kept, samples, left] = [run.detail.value, run.kept.value, run.samples.value, run.left.value];
  if (run.gone.value) {
    return (
      <main>
        <h1>{name}</h1>
        <p class="problem" role="status">
          The folder of this run was removed. <a href="#/">All runs</a>
        </p>
      </main>
    );
  }
  if (!detail || !kept) {
    return (
      <main>
        <h1>{name}</h1>
        {run.problem.value ? <Problem text={run.problem.value} /> : <p class="note">Reading …</p>}
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
  const running = detail.state === "running";
  const { facts } = detail;
  const canTry = !running && facts && (facts.generate || (facts.generate_checkpoint && detail.checkpoints.length > 0));
  const options = (!running && facts?.generate) || [];
  const loras = options.flatMap((option) => /^--lora(?:-2)?=(.*?)(?::1)?$/.exec(option)?.[1] ?? []);
  const example = samples?.sets.at(-1)?.samples[0]?.prompt.trim() ?? "";
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
              <button
                type="button"
                onClick={() => act("POST", runPath(name, "/save"), () => setAsked("A checkpoint will be saved after this step."))}
              >
                Save now
              </button>
              <button
                type="button"
                onClick={() => act("POST", runPath(name, "/sample"), () => setAsked("Samples will be generated after this step."))}
              >
                Sample now
              </button>
            </>
          )}
          {canTry && (
            <button type="button" class="primary" onClick={() => document.querySelector<HTMLElement>("form.ask textarea")?.focus()}>
              Try it
            </button>
          )}
          <a class="button" href={`#/data?like=${encodeURIComponent(name)}`}>
            Data
          </a>
          <a class="button" href={runPath(name, "/metrics.csv")} download={`${name}.csv`}>
            CSV
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
      <Offline text={run.offline.value} />
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
      {loras.length > 0 && (
        <p class="note">
          What it learned: <code class="path">{loras.join(" ")}</code>. ComfyUI finds it in its folder <code>models/loras</code>.
        </p>
      )}
      <dl class="figures">
        <Figure name="Training loss" value={number(now.loss)} />
        <Figure name="Held-out loss" value={number(now.eval_loss)} />
        <Figure name="Learning rate" value={number(now.learning_rate, 3)} />
        <Figure name="Gradient norm" value={number(now.grad_norm, 3)} />
        <Figure name="Tokens per second" value={whole(now.tokens_per_second)} />
        <Figure name="Memory" value={bytes(now.memory)} />
      </dl>
      {samples && <SamplesPart columns={columnsOf(name, samples.sets)} onMore={run.hasMoreSamples() ? () => run.showAllSamples() : null} />}
      {canTry && samples && <AskPart run={detail} facts={facts} example={example} />}
      <NotesPart key={name} run={detail} />
      <SearchPart kept={kept} />
      <CurvesPart run={run} detail={detail} kept={kept} />
      {running && <Gpus />}
      {detail.state === "failed" && <Why name={name} />}
      <EventsPart kept={kept} />
      {facts && facts.commands.length > 0 && (
        <details>
          <summary>Commands for a terminal</summary>
          {facts.commands.map(({ what, line }) => (
            <p key={what}>
              To {what}:<pre tabIndex={0}>{line}</pre>
            </p>
          ))}
        </details>
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
