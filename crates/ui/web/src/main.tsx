// The page: the fragment of the URL selects the view.
import { signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import { Refused, read } from "./api";
import { signIn } from "./session";
import "./style.css";
import { CompareView } from "./views/compare";
import { DoctorView } from "./views/doctor";
import { QueueView } from "./views/queue";
import { RunView } from "./views/run";
import { RunsView } from "./views/runs";

const route = signal(location.hash);
addEventListener("hashchange", () => {
  route.value = location.hash;
  document.getElementById("content")?.focus();
});

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** A view whose code is loaded when it is opened. */
function later<P extends object>(load: () => Promise<ComponentType<P>>): ComponentType<P> {
  let loaded: ComponentType<P> | null = null;
  return function Later(props: P) {
    const [Found, setFound] = useState<ComponentType<P> | null>(() => loaded);
    const [problem, setProblem] = useState(false);
    useEffect(() => {
      let ended = false;
      load().then(
        (found) => {
          loaded = found;
          if (!ended) setFound(() => found);
        },
        () => !ended && setProblem(true),
      );
      return () => {
        ended = true;
      };
    }, []);
    if (Found) return <Found {...props} />;
    return (
      <main>
        <p class="note" role="status">
          {problem ? "The server does not respond: reload the page." : "Loading …"}
        </p>
      </main>
    );
  };
}

const DataPage = later(() => import("./views/data").then((module) => module.DataPage));
const FolderView = later(() => import("./views/folder").then((module) => module.FolderView));
const NewView = later(() => import("./views/new").then((module) => module.NewView));

function View() {
  const hash = route.value;
  const run = /^#\/run\/([^/?]+)$/.exec(hash);
  if (run) return <RunView key={run[1]!} name={decoded(run[1]!)} />;
  if (hash.startsWith("#/compare?")) {
    const names = new URLSearchParams(hash.slice("#/compare?".length)).getAll("run");
    return <CompareView key={hash} names={names} />;
  }
  if (hash === "#/queue") return <QueueView />;
  const made = /^#\/new(?:\?(?:like=([^&]+)|job=(\d+)|data=([^&]+)|(whole)))?$/.exec(hash);
  if (made) {
    const [, like, job, data, whole] = made;
    const text = (part: string | undefined) => (part === undefined ? null : decoded(part));
    return <NewView key={hash} like={text(like)} of={job ?? null} data={text(data)} isWhole={whole !== undefined} />;
  }
  const data = /^#\/data\?like=([^&]+)$/.exec(hash);
  if (data) return <DataPage key={hash} like={decoded(data[1]!)} />;
  const folder = /^#\/data(?:\?path=([^&]+))?$/.exec(hash);
  if (folder) return <FolderView key={hash} path={folder[1] === undefined ? null : decoded(folder[1])} />;
  if (hash === "#/doctor") return <DoctorView />;
  return <RunsView />;
}

type Theme = "auto" | "light" | "dark";

function applyTheme(theme: Theme) {
  const dark = theme === "dark" || (theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset["theme"] = dark ? "dark" : "light";
}

function useTheme(): [Theme, (theme: Theme) => void] {
  const [theme, setTheme] = useState<Theme>(() => (localStorage.getItem("theme") as Theme | null) ?? "auto");
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const change = () => {
      applyTheme(theme);
      // Charts read the colours when they are created.
      route.value = location.hash;
    };
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, [theme]);
  return [
    theme,
    (next) => {
      localStorage.setItem("theme", next);
      applyTheme(next);
      setTheme(next);
    },
  ];
}

/** Why nothing may be shown; `null` if all may, and `undefined` until that is known. */
const refused = signal<string | null | undefined>(undefined);

function Content() {
  if (refused.value === null) return <View />;
  return (
    <main>
      {refused.value === undefined ? (
        <p class="note" role="status">
          Loading …
        </p>
      ) : (
        <>
          <h1>Not signed in</h1>
          <p class="problem" role="alert">
            {refused.value}
          </p>
        </>
      )}
    </main>
  );
}

function App() {
  const [theme, setTheme] = useTheme();
  const here = (hash: string) => (route.value === hash || (hash === "#/" && route.value === "") ? "page" : undefined);
  return (
    <>
      <a
        class="skip"
        href="#content"
        onClick={(event) => {
          event.preventDefault();
          document.getElementById("content")?.focus();
        }}
      >
        Skip to content
      </a>
      <header class="bar">
        <nav aria-label="Views">
          <a class="name" href="#/">
            Surefoot
          </a>
          <a href="#/" aria-current={here("#/")}>
            Runs
          </a>
          <a href="#/data" aria-current={here("#/data")}>
            Data
          </a>
          <a href="#/queue" aria-current={here("#/queue")}>
            Queue
          </a>
          <a href="#/doctor" aria-current={here("#/doctor")}>
            Doctor
          </a>
        </nav>
        <label>
          <span class="hidden">Colours</span>
          <select value={theme} onChange={(event) => setTheme(event.currentTarget.value as Theme)}>
            <option value="auto">System</option>
            <option value="light">Light</option>
            <option value="dark">Dark</option>
          </select>
        </label>
      </header>
      <div id="content" tabIndex={-1} key={theme}>
        <Content />
      </div>
    </>
  );
}

async function start() {
  applyTheme((localStorage.getItem("theme") as Theme | null) ?? "auto");
  render(<App />, document.getElementById("app")!);
  let reason = await signIn();
  route.value = location.hash;
  if (reason === null) {
    try {
      await read("/api/runs");
    } catch (error) {
      if (error instanceof Refused && error.status === 401) reason = error.message;
    }
  }
  refused.value = reason;
}

void start();
