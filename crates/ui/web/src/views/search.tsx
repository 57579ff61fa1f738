// The picture of a search for a learning rate: the loss over the rate, and what was suggested.
import { number } from "../format";
import type { Kept } from "../series";
import { Section } from "../widgets";

const [WIDTH, HEIGHT] = [720, 300];
const [LEFT, RIGHT, TOP, BOTTOM] = [64, 16, 20, 44];
/** Losses on either side that each is averaged with. */
const REACH = 3;

const mean = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / Math.max(values.length, 1);

export function SearchPart({ kept }: { kept: Kept }) {
  const found = kept.events.findLast((event) => event.kind === "learning_rate")?.record;
  if (!found) return null;
  const rates = kept.series.get("learning_rate")?.mean ?? [];
  const points = (kept.series.get("loss")?.mean ?? []).flatMap((loss, index): [number, number][] => {
    const rate = rates[index];
    return loss === null || !rate ? [] : [[Math.log10(rate), loss]];
  });
  const smoothed = points.map(([x], index): [number, number] => {
    const reach = Math.min(REACH, index, points.length - 1 - index);
    return [x, mean(points.slice(index - reach, index + reach + 1).map((point) => point[1]))];
  });
  const rate = typeof found["learning_rate"] === "number" ? found["learning_rate"] : null;
  const reason = String(found["reason"] ?? "");
  const title = rate === null ? "No learning rate can be told" : `Suggested learning rate: ${number(rate, 2)}`;
  return (
    <Section title="Learning rate search" note={`${title}: ${reason}.`}>
      {points.length > 1 && <Picture points={points} smoothed={smoothed} rate={rate} label={`Loss over the learning rate. ${title}.`} />}
    </Section>
  );
}

function Picture(props: { points: [number, number][]; smoothed: [number, number][]; rate: number | null; label: string }) {
  const { points, smoothed, rate } = props;
  const [from, to] = [Math.floor(points[0]![0]), Math.ceil(points.at(-1)![0])];
  const losses = points.map((point) => point[1]);
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  const margin = (high - low) * 0.06 || 1;
  const x = (power: number) => LEFT + ((power - from) / Math.max(to - from, 1)) * (WIDTH - LEFT - RIGHT);
  const y = (loss: number) => TOP + ((high + margin - loss) / (high - low + 2 * margin)) * (HEIGHT - TOP - BOTTOM);
  const path = (line: [number, number][]) =>
    line.map(([power, loss], index) => `${index ? "L" : "M"}${x(power).toFixed(1)} ${y(loss).toFixed(1)}`).join("");
  const powers = Array.from({ length: to - from + 1 }, (_, index) => from + index);
  const levels = [0, 1, 2, 3].map((part) => low + ((high - low) * part) / 3);
  return (
    <svg class="search" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={props.label}>
      {levels.map((level) => (
        <g key={level}>
          <line x1={LEFT} x2={WIDTH - RIGHT} y1={y(level)} y2={y(level)} class="grid" />
          <text x={LEFT - 8} y={y(level) + 4} text-anchor="end">
            {number(level, 3)}
          </text>
        </g>
      ))}
      {powers.map((power) => (
        <text key={power} x={x(power)} y={HEIGHT - 24} text-anchor="middle">
          {power === 0 ? "1" : `1e${power}`}
        </text>
      ))}
      <text x={(LEFT + WIDTH - RIGHT) / 2} y={HEIGHT - 6} text-anchor="middle">
        learning rate
      </text>
      <path d={path(points)} class="pale" />
      <path d={path(smoothed)} class="line" />
      {rate !== null && (
        <g class="mark">
          <line x1={x(Math.log10(rate))} x2={x(Math.log10(rate))} y1={TOP} y2={HEIGHT - BOTTOM} />
          <text x={x(Math.log10(rate)) + 6} y={TOP + 10}>
            {number(rate, 2)}
          </text>
        </g>
      )}
    </svg>
  );
}
