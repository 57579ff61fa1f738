// The queue of runs, one after another or several at once.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { type AtOnce, type Job, type Overview, type Queue, send } from "../api";
import { duration, number, type Seen, seenAt, timeLeft, when } from "../format";
import { listen } from "../live";
import { Confirm, Mark, Offline, Problem, Progress, Section, useTitle } from "../widgets";
import { Log } from "./log";

const AT_ONCE: Record<AtOnce, string> = {
  one: "one",
  per_gpu: "one on each GPU",
  memory: "as memory allows",
};

const queue = signal<Queue | null>(null);
const offline = signal<string | null>(null);
/** The runs that go on, with the time that each has left, by name. */
const running = signal<ReadonlyMap<string, { run: Overview; left: number | null }>>(new Map());
const seen = new Map<string, Seen[]>();

function takeRuns(data: string) {
  const now = performance.now() / 1000;
  const { runs } = JSON.parse(data) as { runs: Overview[] };
  const going = runs.filter(({ state }) => state === "running");
  running.value = new Map(
    going.map((run) => {
      const moments = seenAt(seen.get(run.name) ?? [], run.latest.step, now);
      seen.set(run.name, moments);
      return [run.name, { run, left: run.max_steps === null ? null : timeLeft(moments, run.max_steps, now) }];
    }),
  );
}

export function QueueView() {
  const [refused, setRefused] = useState<string | null>(null);
  useTitle("Queue");
  useEffect(() => {
    const take = (data: string) => {
      queue.value = JSON.parse(data) as Queue;
    };
    const problem = (text: string | null) => {
      offline.value = text;
    };
    return listen({ url: () => "/api/stream", on: { queue: take, runs: takeRuns }, problem });
  }, []);
  // A row that moves loses the focus; at the end of its way the other button has it.
  const moved = useRef<[number, "up" | "down"] | null>(null);
  useEffect(() => {
    if (moved.current === null || document.activeElement !== document.body) return;
    const [id, way] = moved.current;
    const button = (way: string) => document.querySelector<HTMLButtonElement>(`button[aria-label="Move job ${id} ${way}"]:enabled`);
    (button(way) ?? button(way === "up" ? "down" : "up"))?.focus();
  });
  const act = async (method: string, rest: string, body?: unknown) => {
    try {
      const now = await send<Partial<Queue>>(method, `/api/queue${rest}`, body);
      // The stream would bring it a moment later.
      if (now?.jobs) queue.value = now as Queue;
      setRefused(null);
    } catch (error) {
      setRefused((error as Error).message);
    }
  };
  const move = (id: number, way: "up" | "down", place: number) => {
    moved.current = [id, way];
    return act("POST", `/${id}/move`, { place });
  };
  const found = queue.value;
  const jobs = found?.jobs ?? [];
  const active = jobs.filter((job) => job.state === "running" || job.state === "checking");
  const waiting = jobs.filter((job) => job.state === "waiting");
  const ended = jobs.filter((job) => job.state === "ended");
  const list = (some: Job[]) => (
    <ol class="jobs">
      {some.map((job) => (
        <Row key={job.id} job={job} place={waiting.findIndex(({ id }) => id === job.id)} of={waiting.length} act={act} move={move} />
      ))}
    </ol>
  );
  return (
    <main>
      <div class="head">
        <h1>Queue</h1>
        <div class="tools">
          <a class="button primary" href="#/new">
            New run
          </a>
          {found && (
            <label>
              Runs at once{" "}
              <select value={found.at_once} onChange={(event) => act("POST", "/settings", { at_once: event.currentTarget.value })}>
                {Object.entries(AT_ONCE).map(([word, text]) => (
                  <option key={word} value={word}>
                    {text}
                  </option>
                ))}
              </select>
            </label>
          )}
          {found && (
            <button type="button" onClick={() => act("POST", "/pause", { paused: !found.paused })}>
              {found.paused ? "Start the queue" : "Pause the queue"}
            </button>
          )}
        </div>
      </div>
      <Problem text={refused} />
      <Offline text={offline.value} />
      {found?.paused && (
        <p class="note" role="status">
          The queue is paused: active runs continue, and no more are started.
        </p>
      )}
      {found?.unreadable.map((text) => (
        <Problem key={text} text={text} />
      ))}
      {found && jobs.length === 0 && (
        <div class="empty">
          <p>No jobs. Runs in the queue start one after another, or several at once; if one fails, the next still starts.</p>
          <pre>surefoot runs add configs/small.yaml</pre>
        </div>
      )}
      {active.length > 0 && <Section title="Now">{list(active)}</Section>}
      {waiting.length > 0 && (
        <Section
          title="Waiting"
          {...(found?.paused || active.length > 0 ? {} : { note: "A job starts when the other runs in this folder leave room for it." })}
        >
          {list(waiting)}
        </Section>
      )}
      {ended.length > 0 && <Section title="Ended">{list(ended)}</Section>}
    </main>
  );
}

interface RowProps {
  job: Job;
  /** The position among the waiting jobs. */
  place: number;
  of: number;
  act: (method: string, rest: string, body?: unknown) => Promise<void>;
  move: (id: number, way: "up" | "down", place: number) => Promise<void>;
}

function Row({ job, place, of, act, move }: RowProps) {
  const active = job.stopping ? "stopping" : job.state;
  const word = job.state === "ended" ? (job.how ?? "failed") : active;
  const going = job.state === "running" && job.run ? running.value.get(job.run) : undefined;
  const name = job.run ?? job.name;
  const path = `/${job.id}`;
  const isTraining = job.work.kind === "train";
  const isCutShort = job.run != null && (job.how === "stopped" || job.how === "failed");
  return (
    <li class="job" aria-label={`Job ${job.id}, ${name}, ${word}`}>
      <div class="head">
        <span>
          <b>{job.run ? <a href={`#/run/${encodeURIComponent(job.run)}`}>{name}</a> : name}</b>
          <Mark word={word} />
          <span class="note">
            job {job.id}
            {job.work.kind === "resume" && ", resumes"}
            {job.force && ", without a check"}
            {job.device && `, on ${job.device}`}
            {job.state === "waiting" && job.alone && ", needs a device to itself"}
            {job.at !== undefined && `, ${when(job.at, Date.now() / 1000)}`}
          </span>
        </span>
        <span class="tools">
          {job.state === "waiting" && (
            <>
              <button type="button" disabled={place === 0} aria-label={`Move job ${job.id} up`} onClick={() => move(job.id, "up", place)}>
                ↑
              </button>
              <button
                type="button"
                disabled={place === of - 1}
                aria-label={`Move job ${job.id} down`}
                onClick={() => move(job.id, "down", place + 2)}
              >
                ↓
              </button>
            </>
          )}
          {(job.state === "running" || job.state === "checking") && (
            <button type="button" disabled={job.stopping} onClick={() => act("POST", `${path}/stop`)}>
              {job.stopping ? "Saving …" : job.state === "running" ? "Stop and save" : "Stop"}
            </button>
          )}
          {job.run && (
            <a class="button" href={`#/run/${encodeURIComponent(job.run)}`} aria-label={`Open ${name}`}>
              Open
            </a>
          )}
          {isCutShort && (
            <button type="button" onClick={() => act("POST", "", { resume: job.run })}>
              Resume
            </button>
          )}
          {job.state === "ended" && (
            <button type="button" onClick={() => act("POST", `${path}/retry`)}>
              {isTraining && job.run ? "Retry as a new run" : "Retry"}
            </button>
          )}
          {isTraining && (
            <a class="button" href={`#/new?job=${job.id}`} aria-label={`Config of job ${job.id}`}>
              Config
            </a>
          )}
          {job.how === "refused" && (
            <Confirm
              what="Start anyway"
              question="Start it without the check?"
              onYes={() => act("POST", `${path}/retry`, { force: true })}
            />
          )}
          {(job.state === "waiting" || job.state === "ended") && (
            <button type="button" aria-label={`Remove job ${job.id}`} onClick={() => act("DELETE", path)}>
              Remove
            </button>
          )}
        </span>
      </div>
      {job.state === "checking" && <p class="note">Whether it works and fits into memory is tried before it starts.</p>}
      {going && (
        <p class="line">
          <Progress run={going.run} />
          <span class="note">
            loss {number(going.run.latest.loss)}
            {going.left !== null && `, ${duration(going.left)} left`}
          </span>
        </p>
      )}
      {job.set.length > 0 && <code>{job.set.join("  ")}</code>}
      {job.error && (
        <pre class="problem" tabIndex={0} aria-label="What went wrong">
          {job.error}
        </pre>
      )}
      {job.state !== "waiting" && <Log path={`/api/queue${path}/log`} live={job.state !== "ended"} />}
    </li>
  );
}
