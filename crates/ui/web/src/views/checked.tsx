// Checks of a config that is not yet a run, and what a dry run finds.
import { useEffect, useState } from "preact/hooks";
import { type Asked, type ConfigProblem, type DryRun, type NewJob, Refused, send } from "../api";
import { duration, whole } from "../format";
import { Section } from "../widgets";
import { MemoryPart } from "./memory";

/** The delay from the last keystroke to a check of the config, in milliseconds. */
const PAUSE = 400;

/** What is known of a job while it is changed. */
export interface Checked {
  problems: ConfigProblem[] | null;
  /** Why it was not checked, or what was refused since. */
  refused: string | null;
  /** Whether it was checked as it is now, and nothing is wrong. */
  isFine: boolean;
  found: DryRun | null;
  looking: boolean;
  dryRun: () => Promise<void>;
  /** Adds the job to the queue, and shows that. */
  add: (then: () => void) => Promise<void>;
}

/** Checks a job whenever it changes. */
export function useChecked(job: NewJob): Checked {
  /** The request that was checked last. */
  const [checked, setChecked] = useState("");
  const [problems, setProblems] = useState<ConfigProblem[] | null>(null);
  const [refused, setRefused] = useState<string | null>(null);
  const [looking, setLooking] = useState(false);
  const [found, setFound] = useState<DryRun | null>(null);
  const text = JSON.stringify(job);
  useEffect(() => {
    let ended = false;
    setFound(null);
    const look = async () => {
      try {
        const asked = await send<Asked<{ problems: ConfigProblem[] }>>("POST", "/api/check", JSON.parse(text));
        if (ended) return;
        setChecked(text);
        setProblems(asked?.found?.problems ?? null);
        setRefused(asked?.error ?? null);
      } catch (error) {
        if (ended) return;
        if (error instanceof Refused && error.status === 429) timer = setTimeout(look, PAUSE);
        else {
          setProblems(null);
          setRefused((error as Error).message);
        }
      }
    };
    let timer = setTimeout(look, PAUSE);
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [text]);
  const dryRun = async () => {
    setLooking(true);
    try {
      const asked = await send<Asked<DryRun>>("POST", "/api/dry-run", job);
      setFound(asked?.found ?? null);
      setRefused(asked?.error ?? null);
    } catch (error) {
      setRefused((error as Error).message);
    }
    setLooking(false);
  };
  const add = async (then: () => void) => {
    try {
      await send("POST", "/api/queue", job);
      then();
      location.hash = "#/queue";
    } catch (error) {
      setRefused((error as Error).message);
    }
  };
  const isFine = checked === text && problems?.length === 0;
  return { problems, refused, isFine, found, looking, dryRun, add };
}

interface ActionsProps {
  checked: Checked;
  /** Whether its model is on this machine. */
  isHere: boolean;
  onData: () => void;
  /** Called once it is in the queue. */
  onAdded: () => void;
}

/** What can be done with a config, and how it is, always in sight. */
export function Actions({ checked, isHere, onData, onAdded }: ActionsProps) {
  const count = checked.problems?.length ?? 0;
  return (
    <div class="actions">
      <span role="status">
        {checked.isFine && !checked.refused && <span class="badge completed">ready</span>}
        {count > 0 && <span class="badge failed">{count === 1 ? "1 problem" : `${count} problems`}</span>}{" "}
        {!isHere && <span class="note">The model is downloaded when the run starts; then it can be estimated.</span>}
      </span>
      <span class="tools">
        <button type="button" disabled={!checked.isFine || !isHere} onClick={onData}>
          Show the data
        </button>
        <button type="button" disabled={!checked.isFine || checked.looking || !isHere} onClick={checked.dryRun}>
          {checked.looking ? "Measuring …" : "Estimate memory and time"}
        </button>
        <button type="button" class="primary" disabled={!checked.isFine} onClick={() => checked.add(onAdded)}>
          Add to the queue
        </button>
      </span>
    </div>
  );
}

/** What is wrong with a config. The text of a problem is a button if it has a place to go to. */
export function Problems({ checked, onPlace }: { checked: Checked; onPlace: ((line: number, column: number) => void) | null }) {
  return (
    <>
      <div id="problems" role="status">
        <ul class="problems">
          {checked.problems?.map(({ source, line, column, message, help }) => {
            const text = (
              <>
                <b>
                  {source}:{line}:{column}
                </b>{" "}
                {message}
                {help && <span class="note"> ({help})</span>}
              </>
            );
            return (
              <li key={`${source}-${line}-${column}-${message}`}>
                {source === "config" && onPlace ? (
                  <button type="button" onClick={() => onPlace(line, column)}>
                    {text}
                  </button>
                ) : (
                  <p class="problem">{text}</p>
                )}
              </li>
            );
          })}
        </ul>
      </div>
      {checked.refused && (
        <pre class="problem" role="alert" tabIndex={0}>
          {checked.refused}
        </pre>
      )}
    </>
  );
}

export function Found({ found }: { found: DryRun }) {
  return (
    <Section title="Memory and time">
      {found.advice.length > 0 && (
        <div class="problem" role="alert">
          It needs more memory than is available. These settings reduce it, the most effective first:
          <ul>
            {found.advice.map((advice) => (
              <li key={advice}>{advice}</li>
            ))}
          </ul>
        </div>
      )}
      <p>
        {found.environment.device}; {found.environment.model}; {whole(found.trained_parameters)} trainable parameters.{" "}
        {whole(found.max_steps)} steps take about {duration(found.estimated_seconds)}, without evaluations and checkpoints.
      </p>
      <p class="note">{found.environment.data}</p>
      <MemoryPart estimate={found.memory_estimate} plan={found.memory_plan} />
    </Section>
  );
}
