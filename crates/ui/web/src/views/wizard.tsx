// Four steps to a run: what to teach, which model, which data, and the keys that matter. All of them write one config,
// which the form of all keys and the text show, too.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Overview, type RunList, read } from "../api";
import {
  begin,
  freshText,
  GOALS,
  type Goal,
  goalOf,
  isFresh,
  questions,
  TEMPLATES,
  type Template,
  UNNAMED,
  value,
  withKeys,
  written,
} from "../recipes";
import { fieldAt } from "../schema";
import { useTitle } from "../widgets";
import { Config, scalar } from "../yaml";
import { Actions, Found, Problems, useChecked } from "./checked";
import { ChooseData } from "./choose_data";
import { ChooseModel, type ChosenModel } from "./choose_model";
import { DataPart } from "./data";
import { Editor, Entry, problemsByKey, useFields } from "./editor";

const DRAFT = "draft";
/** What was chosen before the captions of its data were opened: whoever comes back from there goes on with it. */
let left: { goal: Goal; model: ChosenModel | null; config: string; data: string | null } | null = null;
const STEPS = ["What to teach", "Model", "Data", "Settings"];
/** The most earlier runs that are offered. */
const MAX_RUNS = 8;

export function Wizard({ isWhole, data: given }: { isWhole: boolean; data: string | null }) {
  useTitle("New run");
  const [draft] = useState(() => localStorage.getItem(DRAFT));
  const [back] = useState(() => (isWhole ? null : left));
  useEffect(() => {
    left = null;
  }, []);
  const [step, setStep] = useState(isWhole ? 3 : back ? 2 : 0);
  /** The furthest step. */
  const [reached, setReached] = useState(step);
  const [config, setConfig] = useState(() => {
    if (back) return given === null ? back.config : withData(back.config, given);
    return isWhole ? (draft ?? freshText()) : freshText();
  });
  const [goal, setGoal] = useState<Goal>(() => back?.goal ?? goalOf(config));
  const [model, setModel] = useState<ChosenModel | null>(back?.model ?? null);
  const [data, setData] = useState<string | null>(given ?? back?.data ?? null);
  // What had the focus is gone with its step: who uses the keyboard goes on at the heading of the next.
  const shown = useRef(step);
  useEffect(() => {
    if (shown.current === step) return;
    shown.current = step;
    const heading = document.querySelector<HTMLElement>(".wizard h2");
    heading?.setAttribute("tabindex", "-1");
    heading?.focus();
  }, [step]);
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
  const isMedia = goal === "image" || goal === "video";
  const about = GOALS.find((each) => each.goal === goal)!;
  return (
    <main class="wizard">
      <p class="crumb">
        <a href="#/">Runs</a>
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
          <ChooseData
            goal={goal}
            chosen={data}
            onChoose={chooseData}
            onCaptions={
              isMedia
                ? () => {
                    left = { goal, model, config, data };
                  }
                : undefined
            }
          />
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

/** With these data, and named after their folder as long as nobody gave it a name. */
function withData(config: string, path: string): string {
  const before = Config.parse(config);
  const name = value(before, "name");
  const isOurs = name === UNNAMED || name === nameOf(value(before, "data.path") ?? "");
  const named = isOurs ? { name: scalar(nameOf(path) || UNNAMED) } : {};
  return withKeys(config, { ...named, "data.path": written(path), "data.dataset": null });
}

/** A name for a run on the folder or file `path`. */
function nameOf(path: string): string {
  const last = path.split(/[/\\]/).at(-1) ?? "";
  return last
    .replace(/(.)\.\w+$/, "$1")
    .toLowerCase()
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-|-$/g, "");
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
        <h2>Or start from a template or an earlier run</h2>
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
      <Actions checked={checked} isHere={isHere} onData={() => setLooked(text)} onAdded={() => localStorage.removeItem(DRAFT)} />
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
