// Several runs: overlaid curves, and the differences between their configs.
import { useEffect, useState } from "preact/hooks";
import { type Comparison, type Metrics, read, runPath, type Samples } from "../api";
import { Chart, type Line } from "../chart";
import { bytes, number, whole } from "../format";
import { type Kept, keep } from "../series";
import { Badge, Problem, Progress, Section, useTitle } from "../widgets";
import { type Column, columnsOf, SamplesPart } from "./samples";

const COLOURS = ["--one", "--two", "--three", "--four", "--five", "--six", "--seven", "--eight"];

export function CompareView({ names }: { names: string[] }) {
  useTitle(`Compare ${names.length} runs`);
  const [comparison, setComparison] = useState<Comparison | null>(null);
  const [curves, setCurves] = useState<ReadonlyMap<string, Kept>>(new Map());
  const [samples, setSamples] = useState<Column[][]>([]);
  /** The step whose samples are shown, `all`, or else the newest of each run. */
  const [shown, setShown] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const [range, setRange] = useState<[number, number] | null>(null);
  const [smoothing, setSmoothing] = useState(0);
  const query = names.map((name) => `run=${encodeURIComponent(name)}`).join("&");
  useEffect(() => {
    let ended = false;
    const load = async () => {
      try {
        const found = await read<Comparison>(`/api/compare?${query}`);
        const all = await Promise.all(names.map(async (name) => [name, keep(await read<Metrics>(runPath(name, "/curves")))] as const));
        const samples = await Promise.all(names.map((name) => read<Samples>(runPath(name, "/samples"))));
        if (ended) return;
        setSamples(
          names.map((run, index) =>
            columnsOf(run, samples[index]!.sets).map((column) => ({ ...column, title: `${run}, step ${whole(column.set.step)}` })),
          ),
        );
        setComparison(found);
        setCurves(new Map(all));
        setProblem(null);
      } catch (error) {
        if (!ended) setProblem((error as Error).message);
      }
    };
    void load();
    const timer = setInterval(load, 10_000);
    return () => {
      ended = true;
      clearInterval(timer);
    };
  }, [query]);
  const steps = [...new Set(samples.flat().map(({ set }) => set.step))].sort((a, b) => b - a);
  // The same step of all runs is side by side.
  const columns =
    shown === ""
      ? samples.flatMap((of) => of.slice(-1))
      : samples
          .flat()
          .filter(({ set }) => shown === "all" || set.step === Number(shown))
          .sort((a, b) => a.set.step - b.set.step);
  const choice = (
    <label>
      Samples of{" "}
      <select value={shown} onChange={(event) => setShown(event.currentTarget.value)}>
        <option value="">the newest step of each run</option>
        {steps.map((step) => (
          <option key={step} value={step}>
            step {whole(step)}
          </option>
        ))}
        <option value="all">all steps</option>
      </select>
    </label>
  );
  const lines = (series: string, smoothed = false): Line[] =>
    names.map((name, index) => ({
      label: name,
      colour: COLOURS[index % COLOURS.length]!,
      series: curves.get(name)?.series.get(series),
      smoothed,
    }));
  const common = { range, onRange: setRange };
  return (
    <main>
      <p class="crumb">
        <a href="#/">Runs</a>
      </p>
      <div class="head">
        <h1>Compare {names.length} runs</h1>
      </div>
      <Problem text={problem} />
      {comparison && (
        <>
          <div class="wide">
            <table>
              <thead>
                <tr>
                  <th scope="col">Run</th>
                  <th scope="col">State</th>
                  <th scope="col">Steps</th>
                  <th scope="col" class="number">
                    Loss
                  </th>
                  <th scope="col" class="number">
                    Held out
                  </th>
                  <th scope="col" class="number">
                    Tokens/s
                  </th>
                  <th scope="col" class="number">
                    Memory
                  </th>
                </tr>
              </thead>
              <tbody>
                {comparison.runs.map((run, index) => (
                  <tr key={run.name}>
                    <th scope="row">
                      <i class={`swatch colour-${index % COLOURS.length}`} aria-hidden="true" />
                      <a href={`#/run/${encodeURIComponent(run.name)}`}>{run.name}</a>
                    </th>
                    <td>
                      <Badge run={run} />
                    </td>
                    <td>
                      <Progress run={run} />
                    </td>
                    <td class="number">{number(run.latest.loss)}</td>
                    <td class="number">{number(run.latest.eval_loss)}</td>
                    <td class="number">{whole(run.latest.tokens_per_second)}</td>
                    <td class="number">{bytes(run.latest.memory)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <SamplesPart columns={columns} choice={choice} />
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
            <button type="button" disabled={!range} onClick={() => setRange(null)}>
              All steps
            </button>
          </fieldset>
          <div class="charts">
            <div class="whole">
              <Chart title="Training loss" height={280} lines={lines("loss", true)} smoothing={smoothing} {...common} />
            </div>
            <Chart title="Held-out loss" lines={lines("eval_loss")} {...common} />
            <Chart title="Gradient norm" lines={lines("grad_norm", true)} smoothing={smoothing} {...common} />
          </div>
          <Section title="Differences between the configs">
            {comparison.unreadable.map((text) => (
              <Problem key={text} text={text} />
            ))}
            {comparison.differences.length === 0 ? (
              <p class="note">None.</p>
            ) : (
              <div class="wide">
                <table>
                  <thead>
                    <tr>
                      <th scope="col">Key</th>
                      {names.map((name) => (
                        <th scope="col" key={name}>
                          {name}
                        </th>
                      ))}
                    </tr>
                  </thead>
                  <tbody>
                    {comparison.differences.map(({ key, values }) => (
                      <tr key={key}>
                        <th scope="row">
                          <code>{key}</code>
                        </th>
                        {values.map((value, index) => (
                          <td key={index}>
                            <code>{value ?? "–"}</code>
                          </td>
                        ))}
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            )}
          </Section>
        </>
      )}
    </main>
  );
}
