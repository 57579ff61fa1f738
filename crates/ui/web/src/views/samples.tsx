// Samples over the steps: a prompt at a time, two steps beside each other.
import { useState } from "preact/hooks";
import type { Samples } from "../api";
import { Section } from "../widgets";

export function SamplesPart({ samples }: { samples: Samples }) {
  const prompts = [...new Set(samples.sets.flatMap((set) => set.samples.map((sample) => sample.prompt)))];
  const [prompt, setPrompt] = useState<string | null>(null);
  const [left, setLeft] = useState<number | null>(null);
  const [right, setRight] = useState<number | null>(null);
  if (samples.sets.length === 0) return null;
  const chosen = prompt !== null && prompts.includes(prompt) ? prompt : prompts[0]!;
  const steps = samples.sets.map((set) => set.step);
  const first = left !== null && steps.includes(left) ? left : steps[0]!;
  const last = right !== null && steps.includes(right) ? right : steps.at(-1)!;
  const text = (step: number) =>
    samples.sets.findLast((set) => set.step === step)?.samples.find((sample) => sample.prompt === chosen)?.text;
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
      <pre tabIndex={0}>{text(step) ?? "This prompt was not asked at that step."}</pre>
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
        {side("Text", first, setLeft)}
        {side("And", last, setRight)}
      </div>
      {samples.steps.length > samples.sets.length && (
        <p class="note">The newest {samples.sets.length} of {samples.steps.length} are here; samples.txt has all.</p>
      )}
    </Section>
  );
}
