// The list of runs.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Overview } from "../api";
import { bytesLike, decimals, when, whole } from "../format";
import { listen } from "../live";
import { refused, saw, want, wanted } from "../notify";
import { Badge, Offline, Problem, Progress, useTitle } from "../widgets";

const runs = signal<Overview[] | null>(null);
const offline = signal<string | null>(null);

const GIB = 2 ** 30;

/** What the list is sorted by, and which columns are left out on a phone. */
const COLUMNS: {
  title: string;
  value: (run: Overview) => number | string | null;
  /** What stands there; the name is a heading of its own. */
  cell?: (run: Overview, now: number) => ComponentChildren;
  isNumber?: boolean;
  isExtra?: boolean;
}[] = [
  { title: "Run", value: (run) => run.name.toLowerCase() },
  { title: "State", value: (run) => run.state, cell: (run) => <Badge run={run} /> },
  { title: "Steps", value: (run) => run.latest.step, cell: (run) => <Progress run={run} /> },
  { title: "Loss", value: (run) => run.latest.loss, cell: (run) => decimals(run.latest.loss), isNumber: true },
  { title: "Held out", value: (run) => run.latest.eval_loss, cell: (run) => decimals(run.latest.eval_loss), isNumber: true },
  {
    title: "Tokens/s",
    value: (run) => run.latest.tokens_per_second,
    cell: (run) => whole(run.latest.tokens_per_second),
    isNumber: true,
    isExtra: true,
  },
  { title: "Memory", value: (run) => run.latest.memory, cell: (run) => bytesLike(GIB, run.latest.memory), isNumber: true, isExtra: true },
  { title: "Changed", value: (run) => run.changed, cell: (run, now) => when(run.changed, now), isExtra: true },
];
/** How it is sorted at first: the newest above. */
const NEWEST = { column: 7, isDown: true };

/** Runs in the order of a column; those without a value are last. */
function sorted(runs: Overview[], { column, isDown }: typeof NEWEST): Overview[] {
  const { value } = COLUMNS[column]!;
  return [...runs].sort((one, other) => {
    const [first, second] = [value(one), value(other)];
    if (first === null || second === null) return Number(first === null) - Number(second === null);
    return (first < second ? -1 : first > second ? 1 : 0) * (isDown ? -1 : 1);
  });
}

/** The columns that are left out, by their titles, as they were chosen in this browser. */
const HIDDEN = "hidden-columns";
const hidden = signal<ReadonlySet<string>>(new Set(JSON.parse(localStorage.getItem(HIDDEN) ?? "[]") as string[]));

function toggleColumn(title: string) {
  const next = new Set(hidden.value);
  if (!next.delete(title)) next.add(title);
  hidden.value = next;
  localStorage.setItem(HIDDEN, JSON.stringify([...next]));
}

export function RunsView() {
  const [chosen, choose] = useState<ReadonlySet<string>>(new Set());
  const [sought, seek] = useState("");
  const [state, setState] = useState("");
  const [order, setOrder] = useState(NEWEST);
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
  const words = sought.toLowerCase();
  const isShown = (run: Overview) =>
    (state === "" || run.state === state) && [run.name, ...run.tags].some((word) => word.toLowerCase().includes(words));
  const shown = list && sorted(list.filter(isShown), order);
  const states = [...new Set(list?.map((run) => run.state))].sort();
  const compared = [...chosen].filter((name) => list?.some((run) => run.name === name)).slice(0, 8);
  const link = `#/compare?${compared.map((name) => `run=${encodeURIComponent(name)}`).join("&")}`;
  return (
    <main>
      <div class="head">
        <h1>Runs</h1>
        {list !== null && list.length > 0 && (
          <a class="button primary" href="#/new">
            New run
          </a>
        )}
      </div>
      {list !== null && list.length > 0 && (
        <div class="controls">
          <label>
            <span class="hidden">Find a run by name or tag</span>
            <input type="search" placeholder="Find" value={sought} onInput={(event) => seek(event.currentTarget.value)} />
          </label>
          <label>
            <span class="hidden">State</span>
            <select value={state} onChange={(event) => setState(event.currentTarget.value)}>
              <option value="">All states</option>
              {states.map((word) => (
                <option key={word}>{word}</option>
              ))}
            </select>
          </label>
          <button type="button" disabled={compared.length < 2} onClick={() => (location.hash = link)}>
            {compared.length < 2 ? "Compare: select two" : `Compare ${compared.length}`}
          </button>
          <details class="columns">
            <summary>Columns</summary>
            <div class="tools">
              {COLUMNS.slice(1).map(({ title }) => (
                <label key={title}>
                  <input type="checkbox" checked={!hidden.value.has(title)} onChange={() => toggleColumn(title)} /> {title}
                </label>
              ))}
            </div>
          </details>
          <label>
            <input type="checkbox" checked={wanted.value} onChange={(event) => want(event.currentTarget.checked)} /> Notify me at the end
          </label>
        </div>
      )}
      <Problem text={refused.value} />
      <Offline text={offline.value} />
      {list === null && offline.value === null && <p class="note">Reading the folder …</p>}
      {list?.length === 0 && (
        <div class="empty first">
          <h2>Teach a model something of yours</h2>
          <p>A style, a face, a way to answer: four steps lead from a folder of pictures, videos or texts to a model that knows it.</p>
          <p>
            <a class="button primary" href="#/new">
              New run
            </a>
          </p>
          <p class="note">
            A run that is started in a terminal appears here, too: <code>surefoot train configs/small.yaml</code>
          </p>
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
                {COLUMNS.map(({ title, isNumber, isExtra }, column) => {
                  if (hidden.value.has(title)) return null;
                  const isSorted = order.column === column;
                  return (
                    <th
                      key={title}
                      scope="col"
                      class={`${isNumber ? "number " : ""}${isExtra ? "extra" : ""}`}
                      aria-sort={isSorted ? (order.isDown ? "descending" : "ascending") : undefined}
                    >
                      <button
                        type="button"
                        class="sort"
                        onClick={() => setOrder({ column, isDown: isSorted ? !order.isDown : column === NEWEST.column })}
                      >
                        {title}
                        {isSorted && <span aria-hidden="true">{order.isDown ? " ↓" : " ↑"}</span>}
                      </button>
                    </th>
                  );
                })}
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
                    {run.tags.map((tag) => (
                      <button key={tag} type="button" class="tag" title="Show the runs with this tag" onClick={() => seek(tag)}>
                        {tag}
                      </button>
                    ))}
                  </th>
                  {COLUMNS.map(
                    ({ title, isNumber, isExtra, cell }) =>
                      cell &&
                      !hidden.value.has(title) && (
                        <td key={title} class={`${isNumber ? "number " : ""}${isExtra ? "extra" : ""}`}>
                          {cell(run, now)}
                        </td>
                      ),
                  )}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {shown?.length === 0 && (list?.length ?? 0) > 0 && <p class="note">No run is like that.</p>}
    </main>
  );
}
