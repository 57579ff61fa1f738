// Four steps to a run: what to teach, which model, which data, and the keys that matter. All of them write one config,
// which the form of all keys and the text show, too.
import { useEffect, useMemo, useState } from "preact/hooks";
import { type Overview, type RunList, read } from "../api";
import { begin, freshText, GOALS, type Goal, goalOf, isFresh, questions, TEMPLATES, type Template, withKeys, written } from "../recipes";
import { fieldAt } from "../schema";
import { useTitle } from "../widgets";
import { Config } from "../yaml";
import { type Checked, Found, Problems, useChecked } from "./checked";
import { ChooseData } from "./choose_data";
import { ChooseModel, type ChosenModel } from "./choose_model";
import { DataPart } from "./data";
import { Editor, Entry, problemsByKey, useFields } from "./editor";

const DRAFT = "draft";
const STEPS = ["What to teach", "Model", "Data", "Settings"];
/** The most earlier runs that are offered. */
const MAX_RUNS = 8;

export function Wizard({ isWhole, data: given }: { isWhole: boolean; data: string | null }) {
  useTitle("New run");
  const [draft] = useState(() => localStorage.getItem(DRAFT));
  const [step, setStep] = useState(isWhole ? 3 : 0);
  /** The furthest step. */
  const [reached, setReached] = useState(step);
  const [config, setConfig] = useState(() => (isWhole ? (draft ?? freshText()) : freshText()));
  const [goal, setGoal] = useState<Goal>(() => goalOf(config));
  const [model, setModel] = useState<ChosenModel | null>(null);
  const [data, setData] = useState<string | null>(given);
  const go = (next: number) => {
    setStep(next);
    setReached(Math.max(next, reached));
    scrollTo(0, 0);
  };
  const change = (text: string) => {
    setConfig(text);
    localStorage.setItem(DRAFT, text);
  };
  const chooseGoal = (chosen: Goal) => {
    setGoal(chosen);
    setModel(null);
    setData(given);
    setReached(1);
    setStep(1);
  };
  const chooseModel = (chosen: ChosenModel) => {
    setModel(chosen);
    const text = chosen.name === null ? freshText() : begin(goal, chosen.name, chosen.keys);
    change(data === null ? text : withData(text, data));
    go(2);
  };
  const chooseData = (path: string) => {
    setData(path);
    change(withData(config, path));
  };
  const open = (text: string, goal: Goal) => {
    change(text);
    setGoal(goal);
    setModel(null);
    setData(null);
    go(3);
  };
  const about = GOALS.find((each) => each.goal === goal)!;
  return (
    <main class="wizard">
      <p class="crumb">
        <a href="#/queue">Queue</a>
      </p>
      <h1>New run</h1>
      <ol class="stepper">
        {STEPS.map((title, index) => (
          <li key={title} aria-current={index === step ? "step" : undefined}>
            <button type="button" disabled={index > reached} onClick={() => setStep(index)}>
              <span aria-hidden="true">{index + 1}</span> {title}
            </button>
          </li>
        ))}
      </ol>
      {step === 0 && <ChooseGoal draft={draft} onGoal={chooseGoal} onOpen={open} />}
      {step === 1 && (
        <section aria-label="Model">
          <h2>Which model learns it?</h2>
          <ChooseModel key={goal} goal={goal} onChoose={chooseModel} />
        </section>
      )}
      {step === 2 && (
        <section aria-label="Data">
          <h2>What does it learn from?</h2>
          <p class="note">{about.data}</p>
          <ChooseData goal={goal} chosen={data} onChoose={chooseData} />
          {goal === "text" && (
            <p>
              <button
                type="button"
                onClick={() => {
                  setData(null);
                  change(withKeys(config, { "data.path": null, "data.dataset": "shakespeare" }));
                  go(3);
                }}
              >
                Try it with Shakespeare
              </button>
            </p>
          )}
          {data !== null && (model?.isHere ?? true) && <DataPart key={config} job={{ config, set: {} }} />}
          {data !== null && model?.isHere === false && (
            <p class="note">How the data are read is shown once the model is on this machine: it decides the sizes.</p>
          )}
          <div class="actions">
            <span class="path">{data ?? "Nothing is chosen yet."}</span>
            <button type="button" class="primary" disabled={data === null} onClick={() => go(3)}>
              Continue
            </button>
          </div>
        </section>
      )}
      {step === 3 && <Settings goal={goal} config={config} onConfig={change} isHere={model?.isHere ?? true} isWhole={isWhole} />}
    </main>
  );
}

function withData(config: string, path: string): string {
  return withKeys(config, { "data.path": written(path), "data.dataset": null });
}

interface GoalProps {
  draft: string | null;
  onGoal: (goal: Goal) => void;
  onOpen: (text: string, goal: Goal) => void;
}

function ChooseGoal({ draft, onGoal, onOpen }: GoalProps) {
  const [runs, setRuns] = useState<Overview[]>([]);
  useEffect(() => {
    read<RunList>("/api/runs").then(
      (found) => setRuns(found.runs.slice(0, MAX_RUNS)),
      () => {},
    );
  }, []);
  return (
    <>
      <section aria-label="What to teach">
        <h2>What do you want to teach?</h2>
        <ul class="cards goals">
          {GOALS.map(({ goal, title, about }) => (
            <li key={goal}>
              <button type="button" class="card" onClick={() => onGoal(goal)}>
                <b>{title}</b>
                <span class="note">{about}</span>
              </button>
            </li>
          ))}
        </ul>
      </section>
      <section aria-label="Templates">
        <h2>Or begin with what is there</h2>
        <ul class="entries named">
          {draft !== null && (
            <li>
              <button type="button" onClick={() => onOpen(draft, goalOf(draft))}>
                <b>Your last config</b>
                <span class="note">as you left it</span>
              </button>
            </li>
          )}
          {runs.map(({ name, state }) => (
            <li key={name}>
              <a href={`#/new?like=${encodeURIComponent(name)}`}>
                <b>{name}</b>
                <span class="note">your run, {state}</span>
              </a>
            </li>
          ))}
          {TEMPLATES.map((template: Template) => (
            <li key={template.name}>
              <button type="button" onClick={() => onOpen(template.text, template.goal)}>
                <b>{template.name}</b>
                <span class="note">{template.about}</span>
              </button>
            </li>
          ))}
        </ul>
      </section>
    </>
  );
}

interface SettingsProps {
  goal: Goal;
  config: string;
  onConfig: (text: string) => void;
  isHere: boolean;
  isWhole: boolean;
}

function Settings({ goal, config: text, onConfig, isHere, isWhole }: SettingsProps) {
  const fields = useFields();
  const checked = useChecked({ config: text, set: {} });
  const [place, setPlace] = useState<{ line: number; column: number } | null>(null);
  const [isOpen, setOpen] = useState(isWhole);
  const [looked, setLooked] = useState<string | null>(null);
  const config = useMemo(() => Config.parse(text), [text]);
  const wrong = useMemo(() => problemsByKey(text, config, checked.problems ?? []), [text, config, checked.problems]);
  const asked = questions(goal, isFresh(text));
  return (
    <section aria-label="Settings">
      <h2>How is it trained?</h2>
      <fieldset class="plain questions" disabled={config === null}>
        {asked.map(({ path, label, about }) => {
          const field = fieldAt(fields, path);
          const set = (value: string | string[] | null) => {
            const changed = config?.set(path, value) ?? null;
            if (changed !== null) onConfig(changed);
          };
          return (
            field && (
              <Entry
                key={path.join(".")}
                field={field}
                label={label}
                about={about}
                config={config}
                problem={wrong.get(path.join(".")) ?? null}
                onValue={set}
              />
            )
          );
        })}
      </fieldset>
      <Actions checked={checked} isHere={isHere} onData={() => setLooked(text)} />
      <Problems
        checked={checked}
        onPlace={(line, column) => {
          setOpen(true);
          setPlace({ line, column });
        }}
      />
      {checked.found && <Found found={checked.found} />}
      {looked !== null && <DataPart key={looked} job={{ config: looked, set: {} }} />}
      <details class="whole" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>All keys and YAML</summary>
        {isOpen && <Editor text={text} onText={onConfig} problems={checked.problems ?? []} place={place} />}
      </details>
    </section>
  );
}

/** What can be done with a config, and how it is, always in sight. */
function Actions({ checked, isHere, onData }: { checked: Checked; isHere: boolean; onData: () => void }) {
  const count = checked.problems?.length ?? 0;
  const add = () => checked.add(() => localStorage.removeItem(DRAFT));
  return (
    <div class="actions">
      <span>
        {checked.isFine && !checked.refused && <span class="badge completed">valid</span>}
        {count > 0 && <span class="badge failed">{count === 1 ? "1 problem" : `${count} problems`}</span>}{" "}
        {!isHere && <span class="note">The model is downloaded when the run starts; then it can be estimated.</span>}
      </span>
      <span class="tools">
        <button type="button" disabled={!checked.isFine || !isHere} onClick={onData}>
          Show the data
        </button>
        <button type="button" disabled={!checked.isFine || checked.looking || !isHere} onClick={checked.dryRun}>
          {checked.looking ? "Running …" : "Dry run"}
        </button>
        <button type="button" class="primary" disabled={!checked.isFine} onClick={add}>
          Add to the queue
        </button>
      </span>
    </div>
  );
}
