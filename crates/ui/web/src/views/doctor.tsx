// Problems of this machine, and the explanation of a log.
import { useEffect, useState } from "preact/hooks";
import { type Doctor, type Explanation, read, readText, send } from "../api";
import { Copy, Problem, Section, useTitle } from "../widgets";
import { Gpus } from "./gpus";

export function DoctorView() {
  useTitle("Doctor");
  const [found, setFound] = useState<Doctor | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [log, setLog] = useState("");
  const [explanation, setExplanation] = useState<Explanation | null>(null);
  const [dump, setDump] = useState<string | null>(null);
  useEffect(() => {
    read<Doctor>("/api/doctor").then(setFound, (error: Error) => setProblem(error.message));
  }, []);
  const tell = (work: Promise<void>) => work.catch((error: Error) => setProblem(error.message));
  return (
    <main>
      <div class="head">
        <h1>Doctor</h1>
      </div>
      <Problem text={problem} />
      {!found && !problem && (
        <p class="note" role="status">
          Checking this machine …
        </p>
      )}
      {found && (
        <>
          <p class={found.has_errors ? "verdict bad" : "verdict"}>{found.verdict}</p>
          {found.report.findings.map((finding) => (
            <article class={`finding ${finding.severity}`} key={finding.id}>
              <h2>
                <span class={`badge ${finding.severity}`}>{finding.severity}</span> {finding.title}
              </h2>
              <p>{finding.seen}</p>
              <p class="note">{finding.why}</p>
              {finding.fix.length > 0 && <Copy text={finding.fix.join("\n")} />}
              <p class="note">
                <a href={finding.source} rel="noreferrer noopener" target="_blank">
                  {finding.source}
                </a>
              </p>
            </article>
          ))}
        </>
      )}
      <Gpus />
      <Section title="What does this message mean?">
        <label class="stack">
          Paste the end of a log
          <textarea rows={6} value={log} onInput={(event) => setLog(event.currentTarget.value)} />
        </label>
        <button
          type="button"
          disabled={log.trim() === ""}
          onClick={() => tell(send<Explanation>("POST", "/api/explain", { text: log }).then((answer) => setExplanation(answer)))}
        >
          Explain
        </button>
        <div aria-live="polite">
          {explanation?.matches.length === 0 && <p class="note">No known error was found in it.</p>}
          {explanation?.matches.map((match, index) => (
            <article class="finding" key={index}>
              {match.line && <pre tabIndex={0}>{match.line}</pre>}
              <p>{match.cause}</p>
              {match.fix.length > 0 && <Copy text={match.fix.join("\n")} />}
              <p class="note">
                <a href={match.source} rel="noreferrer noopener" target="_blank">
                  {match.source}
                </a>
              </p>
            </article>
          ))}
        </div>
      </Section>
      <Section
        title="Report for posting"
        note="What the doctor read on this machine, with your home folder shortened to ~. Read it before you post it."
      >
        {dump === null ? (
          <button type="button" onClick={() => tell(readText("/api/doctor/dump").then(setDump))}>
            Create the report
          </button>
        ) : (
          <Copy text={dump} />
        )}
      </Section>
    </main>
  );
}
