// Samples of one prompt at two steps, side by side.
import { useState } from "preact/hooks";
import { runPath, type Samples } from "../api";
import { Section } from "../widgets";

/** Whether the user prefers pages without animation. */
const STILL = matchMedia("(prefers-reduced-motion: reduce)").matches;

export function SamplesPart({ run, samples }: { run: string; samples: Samples }) {
  const prompts = [...new Set(samples.sets.flatMap((set) => set.samples.map((sample) => sample.prompt)))];
  const [prompt, setPrompt] = useState<string | null>(null);
  const [left, setLeft] = useState<number | null>(null);
  const [right, setRight] = useState<number | null>(null);
  if (samples.sets.length === 0) return null;
  const chosen = prompt !== null && prompts.includes(prompt) ? prompt : prompts[0]!;
  const steps = samples.sets.map((set) => set.step);
  const first = left !== null && steps.includes(left) ? left : steps[0]!;
  const last = right !== null && steps.includes(right) ? right : steps.at(-1)!;
  const of = (step: number) => {
    const made = samples.sets.findLast((set) => set.step === step)?.samples ?? [];
    const place = made.findIndex((sample) => sample.prompt === chosen);
    return { place, sample: made[place] };
  };
  const side = (label: string, step: number, set: (step: number) => void) => (
    <div class="sample">
      <label>
        {label} after step{" "}
        <select value={step} onChange={(event) => set(Number(event.currentTarget.value))}>
          {[...new Set(steps)].map((step) => (
            <option key={step} value={step}>
              {step.toLocaleString("en")}
            </option>
          ))}
        </select>
      </label>
      <Files run={run} step={step} place={of(step).place} files={of(step).sample?.files ?? []} prompt={chosen} />
      <pre tabIndex={0}>{of(step).sample?.text ?? "There is no sample of this prompt at that step."}</pre>
    </div>
  );
  return (
    <Section title="Samples">
      <label class="prompt">
        Prompt{" "}
        <select value={chosen} onChange={(event) => setPrompt(event.currentTarget.value)}>
          {prompts.map((prompt) => (
            <option key={prompt} value={prompt}>
              {prompt.trim().slice(0, 80) || "(empty)"}
            </option>
          ))}
        </select>
      </label>
      <div class="pair">
        {side("Sample", first, setLeft)}
        {side("Compared with", last, setRight)}
      </div>
      {samples.steps.length > samples.sets.length && (
        <p class="note">
          The newest {samples.sets.length} of {samples.steps.length} are shown; samples.txt contains all.
        </p>
      )}
    </Section>
  );
}

/** The images and videos of a sample; after a video, its contact sheet of frames. */
function Files({ run, step, place, files, prompt }: { run: string; step: number; place: number; files: string[]; prompt: string }) {
  return (
    <>
      {files.map((file, number) => {
        const path = runPath(run, `/samples/${step}/${place}/${number}`);
        const label = `${prompt}, step ${step}`;
        if (/\.(mp4|webm|mov|m4v)$/i.test(file)) {
          return <video key={path} src={path} controls muted loop autoPlay={!STILL} playsInline preload="metadata" aria-label={label} />;
        }
        if (!/\.(png|jpe?g|gif|webp|bmp)$/i.test(file)) return <code key={path}>{file}</code>;
        const picture = <img src={path} loading="lazy" alt={label} />;
        if (number === 0) return <span key={path}>{picture}</span>;
        return (
          <details key={path}>
            <summary>Frames</summary>
            {picture}
          </details>
        );
      })}
    </>
  );
}
