// The second step to a run: which model.
import { useEffect, useMemo, useState } from "preact/hooks";
import { type Asked, type Fit, type FoundModel, type FoundModels, read, send } from "../api";
import { bytes } from "../format";
import { begin, type Goal, onHub, suits, type Verdict, verdict } from "../recipes";
import { Problem } from "../widgets";

/** A model that was chosen. */
export interface ChosenModel {
  /** What `model.name_or_path` calls it; unset for a model from nothing. */
  name: string | null;
  /** Keys that make it fit. */
  keys: Record<string, string | null>;
  /** Whether it is on this machine. */
  isHere: boolean;
}

const PLACES: Record<FoundModel["place"], string> = {
  folder: "in a folder",
  hub: "in the hub's cache",
  cache: "in Surefoot's cache",
};

/** What is known of how models fit, by their names; they are measured one after another while the page is open. */
function useVerdicts(goal: Goal, models: FoundModel[]): ReadonlyMap<string, Verdict> {
  const [known, setKnown] = useState<ReadonlyMap<string, Verdict>>(new Map());
  useEffect(() => {
    let ended = false;
    const measure = async () => {
      for (const { name } of models) {
        const asked = await send<Asked<Fit>>("POST", "/api/fits", { config: begin(goal, name, {}) }).catch((error: Error) => ({
          found: null,
          error: error.message,
        }));
        if (ended) return;
        const told: Verdict = asked?.found
          ? verdict(asked.found)
          : { text: "could not be measured", level: "warning", keys: {}, ...(asked?.error ? { why: asked.error } : {}) };
        setKnown((known) => new Map(known).set(name, told));
      }
    };
    void measure();
    return () => {
      ended = true;
    };
  }, [goal, models]);
  return known;
}

export function ChooseModel({ goal, onChoose }: { goal: Goal; onChoose: (model: ChosenModel) => void }) {
  const [found, setFound] = useState<FoundModels | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [other, setOther] = useState("");
  useEffect(() => {
    let ended = false;
    read<Asked<FoundModels>>("/api/models").then(
      (asked) => {
        if (ended) return;
        setFound(asked.found);
        setProblem(asked.error);
      },
      (error: Error) => !ended && setProblem(error.message),
    );
    return () => {
      ended = true;
    };
  }, []);
  const models = useMemo(() => found?.models.filter((model) => suits(goal, model)) ?? [], [found, goal]);
  const verdicts = useVerdicts(goal, models);
  const known = new Set(found?.models.map((model) => model.name));
  const elsewhere = onHub(goal).filter(({ name }) => !known.has(name));
  return (
    <>
      <Problem text={problem} />
      {!found && !problem && (
        <p class="note" role="status">
          Looking for models on this machine …
        </p>
      )}
      {found && (
        <p class="note">
          {found.device}
          {found.memory !== null && `, ${bytes(found.memory)}`}. Whether a model fits is measured with its real shapes, without loading it.
        </p>
      )}
      <p class="note" role="status">
        {verdicts.size < models.length && `Measured ${verdicts.size} of ${models.length}; you can choose before it is done.`}
      </p>
      {found && models.length === 0 && <p class="note">No model for this was found in the caches and the allowed folders.</p>}
      <ul class="cards">
        {goal === "text" && (
          <li>
            <button type="button" class="card" onClick={() => onChoose({ name: null, keys: {}, isHere: true })}>
              <b>A small model from nothing</b>
              <span class="note">A few million parameters that know only your texts. Minutes, even without a GPU.</span>
            </button>
          </li>
        )}
        {models.map((model) => {
          const fits = verdicts.get(model.name);
          return (
            <li key={model.name}>
              <button type="button" class="card" onClick={() => onChoose({ name: model.name, keys: fits?.keys ?? {}, isHere: true })}>
                <b>{model.name.startsWith("/") ? model.name.slice(model.name.lastIndexOf("/") + 1) : model.name}</b>
                <span class="note">
                  {model.architecture}, {bytes(model.bytes)} of weights, {PLACES[model.place]}
                </span>
                {model.place === "folder" && <span class="path">{model.name}</span>}
                {fits ? (
                  <>
                    <span class={`badge ${fits.level}`}>{fits.text}</span>
                    {fits.why && <span class="note">{fits.why}</span>}
                  </>
                ) : (
                  <span class="note">Measuring whether it fits …</span>
                )}
              </button>
            </li>
          );
        })}
        {elsewhere.map(({ name, about }) => (
          <li key={name}>
            <button type="button" class="card absent" onClick={() => onChoose({ name, keys: {}, isHere: false })}>
              <b>{name}</b>
              {about && <span class="note">{about}</span>}
              <span class="note">Not on this machine: downloaded from the Hugging Face hub when the run starts.</span>
            </button>
          </li>
        ))}
      </ul>
      <form
        class="tools"
        onSubmit={(event) => {
          event.preventDefault();
          if (other.trim()) onChoose({ name: other.trim(), keys: {}, isHere: known.has(other.trim()) || /^[./~]/.test(other.trim()) });
        }}
      >
        <label>
          Another model{" "}
          <input
            type="text"
            value={other}
            placeholder="org/name on the hub, or a path"
            spellcheck={false}
            onInput={(event) => setOther(event.currentTarget.value)}
          />
        </label>
        <button type="submit" disabled={!other.trim()}>
          Use it
        </button>
      </form>
    </>
  );
}
