// The list of runs.
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import type { Overview } from "../api";
import { bytes, number, when, whole } from "../format";
import { listen } from "../live";
import { refused, saw, want, wanted } from "../notify";
import { Badge, Offline, Problem, Progress, useTitle } from "../widgets";

const runs = signal<Overview[] | null>(null);
const offline = signal<string | null>(null);

export function RunsView() {
  const [chosen, choose] = useState<ReadonlySet<string>>(new Set());
  const [sought, seek] = useState("");
  useTitle("Runs");
  useEffect(() => {
    const take = (data: string) => {
      runs.value = (JSON.parse(data) as { runs: Overview[] }).runs;
      saw(runs.value);
    };
    const problem = (text: string | null) => {
      offline.value = text;
    };
    return listen({ url: () => "/api/stream", on: { runs: take }, problem });
  }, []);
  const toggle = (name: string) => {
    const next = new Set(chosen);
    if (!next.delete(name)) next.add(name);
    choose(next);
  };
  const list = runs.value;
  const now = Date.now() / 1000;
  const shown = list?.filter((run) => run.name.toLowerCase().includes(sought.toLowerCase()));
  const compared = [...chosen].filter((name) => list?.some((run) => run.name === name)).slice(0, 8);
  const link = `#/compare?${compared.map((name) => `run=${encodeURIComponent(name)}`).join("&")}`;
  return (
    <main>
      <div class="head">
        <h1>Runs</h1>
        <div class="tools">
          <a class="button primary" href="#/new">
            New run
          </a>
          <label>
            <input type="checkbox" checked={wanted.value} onChange={(event) => want(event.currentTarget.checked)} /> Notify me at the end
          </label>
          <label>
            <span class="hidden">Find a run by name</span>
            <input type="search" placeholder="Find" value={sought} onInput={(event) => seek(event.currentTarget.value)} />
          </label>
          <button type="button" disabled={compared.length < 2} onClick={() => (location.hash = link)}>
            {compared.length < 2 ? "Compare: select two" : `Compare ${compared.length}`}
          </button>
        </div>
      </div>
      <Problem text={refused.value} />
      <Offline text={offline.value} />
      {list === null && offline.value === null && <p class="note">Reading the folder …</p>}
      {list?.length === 0 && (
        <div class="empty">
          <p>No runs yet. A run that is started in a terminal appears here automatically:</p>
          <pre>surefoot train configs/small.yaml</pre>
        </div>
      )}
      {shown && shown.length > 0 && (
        <div class="wide">
          <table class="runs">
            <thead>
              <tr>
                <th scope="col">
                  <span class="hidden">Compare</span>
                </th>
                <th scope="col">Run</th>
                <th scope="col">State</th>
                <th scope="col">Steps</th>
                <th scope="col" class="number">
                  Loss
                </th>
                <th scope="col" class="number">
                  Held out
                </th>
                <th scope="col" class="number extra">
                  Tokens/s
                </th>
                <th scope="col" class="number extra">
                  Memory
                </th>
                <th scope="col" class="extra">
                  Changed
                </th>
              </tr>
            </thead>
            <tbody>
              {shown.map((run) => (
                <tr key={run.name}>
                  <td>
                    <input
                      type="checkbox"
                      checked={chosen.has(run.name)}
                      onChange={() => toggle(run.name)}
                      aria-label={`Compare ${run.name}`}
                    />
                  </td>
                  <th scope="row">
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
                  <td class="number extra">{whole(run.latest.tokens_per_second)}</td>
                  <td class="number extra">{bytes(run.latest.memory)}</td>
                  <td class="extra">{when(run.changed, now)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {shown?.length === 0 && (list?.length ?? 0) > 0 && <p class="note">No run name contains “{sought}”.</p>}
    </main>
  );
}
