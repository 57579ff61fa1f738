// A chart: lines over the steps, with bands from minimum to maximum behind them, and marks.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { number, ticks } from "./format";
import { type Series, smooth } from "./series";

export interface Line {
  label: string;
  /** A CSS variable. */
  colour: string;
  series: Series | undefined;
  dashed?: boolean;
  smoothed?: boolean;
}

export interface Mark {
  step: number;
  label: string;
}

interface Props {
  title: string;
  lines: Line[];
  marks?: Mark[];
  /** Horizontal lines, for example limits. */
  levels?: { label: string; value: number }[];
  format?: (value: number) => string;
  smoothing?: number;
  logarithmic?: boolean;
  /** The values are bytes: the ticks of the axis are powers of two. */
  inBytes?: boolean;
  range: [number, number] | null;
  onRange: (range: [number, number] | null) => void;
  height?: number;
}

const POWERS = Array.from({ length: 48 }, (_, power) => 2 ** power);
/** Steps are whole. */
const WHOLE = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((first) => first * 10 ** power)).flat();

interface Drawn {
  label: string;
  colour: string;
  line: Line;
}

function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** All steps of the lines, and each line's values at them. */
function table(lines: Line[], smoothing: number) {
  const steps = [...new Set(lines.flatMap((line) => line.series?.steps ?? []))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, index) => [step, index]));
  const columns: (number | null | undefined)[][] = [];
  for (const line of lines) {
    const spread = (values: (number | null)[]) => {
      // `undefined` is not a gap: another line has a value at this step.
      const column: (number | null | undefined)[] = new Array(steps.length).fill(undefined);
      line.series?.steps.forEach((step, index) => {
        column[place.get(step)!] = values[index] ?? null;
      });
      return column;
    };
    const { mean, min, max } = line.series ?? { mean: [], min: [], max: [] };
    columns.push(spread(line.smoothed ? smooth(mean, smoothing) : mean), spread(min), spread(max));
  }
  return [steps, ...columns] as uPlot.AlignedData;
}

/** Whether a line has so few values between two places of the table that each gets a dot; one alone is nothing else. */
function isSparse(plot: uPlot, line: number, from: number, to: number): boolean {
  let count = 0;
  for (let index = from; index <= to && count < 30; index += 1) if (plot.data[line]?.[index] != null) count += 1;
  return count < 30;
}

/** The data that a chart shows. Curves are replaced, or grow at their end, where the last value may still change. */
function contents(props: Props): unknown[] {
  const lines = props.lines.flatMap(({ series, smoothed }) => {
    const last = (series?.steps.length ?? 0) - 1;
    return [series, last, series?.mean[last], series?.min[last], series?.max[last], smoothed ? props.smoothing : 0];
  });
  const marks = (props.marks ?? []).flatMap((mark) => [mark.step, mark.label]);
  const levels = (props.levels ?? []).flatMap((level) => [level.label, level.value]);
  return [...lines, ...marks, ...levels, props.range?.[0], props.range?.[1]];
}

function describe(props: Props): string {
  const format = props.format ?? number;
  const parts = props.lines.flatMap((line) => {
    const { steps, mean } = line.series ?? { steps: [], mean: [] };
    const known = mean.findLastIndex((value) => value !== null);
    const first = mean.find((value) => value !== null);
    if (known < 0 || first === null || first === undefined) return [];
    return [`${line.label}: ${format(first)} at step ${steps[0]}, ${format(mean[known]!)} at step ${steps[known]}`];
  });
  const marks = (props.marks ?? []).map((mark) => `${mark.label} at step ${mark.step}`);
  const marked = marks.length > 0 ? ` Marks: ${marks.slice(-12).join("; ")}.` : "";
  const levels = (props.levels ?? []).map((level) => ` ${level.label}: ${format(level.value)}.`).join("");
  return `${props.title}. ${parts.join("; ") || "No data yet"}.${levels}${marked}`;
}

/** Work that is done in separate animation frames, so that a page with many charts stays responsive while they appear. */
const waiting: (() => void)[] = [];

function runNext() {
  waiting.shift()!();
  if (waiting.length > 0) requestAnimationFrame(runNext);
}

/** Creates a chart in one frame and draws its data in the next. The returned function destroys it, or cancels what is still scheduled. */
function schedule(create: () => { draw: () => void; destroy: () => void } | null): () => void {
  let cancelled = false;
  let destroy = () => {};
  waiting.push(() => {
    const chart = cancelled ? null : create();
    if (!chart) return;
    destroy = chart.destroy;
    waiting.unshift(() => {
      if (!cancelled) chart.draw();
    });
  });
  // The next frame does the layout of the page, which takes long enough.
  if (waiting.length === 1) requestAnimationFrame(() => requestAnimationFrame(runNext));
  return () => {
    cancelled = true;
    destroy();
  };
}

export function Chart(props: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shown = useRef<{ plot: uPlot; what: unknown[] } | null>(null);
  const current = useRef(props);
  current.current = props;
  const shape = props.lines.map((line) => line.label + line.colour).join("|") + (props.logarithmic ? "log" : "");
  const theme = document.documentElement.dataset["theme"] ?? "";

  /** Draws the current data unless they are drawn already. */
  const update = () => {
    const made = plot.current;
    if (!made) return;
    const props = current.current;
    const what = contents(props);
    const before = shown.current;
    if (before?.plot === made && before.what.length === what.length && before.what.every((one, index) => Object.is(one, what[index])))
      return;
    shown.current = { plot: made, what };
    made.batch(() => {
      made.setData(table(props.lines, props.smoothing ?? 0), true);
      if (props.range) made.setScale("x", { min: props.range[0], max: props.range[1] });
    });
  };

  useEffect(() => {
    const create = () => {
      const element = place.current;
      if (!element) return null;
      const props = current.current;
      const drawn: Drawn[] = props.lines.map((line) => ({ label: line.label, colour: css(line.colour), line }));
      const text = css("--quiet");
      const grid = css("--grid");
      const format = props.format ?? number;
      const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "12px system-ui" };
      const options: uPlot.Options = {
        width: Math.max(element.clientWidth, 100),
        height: props.height ?? 220,
        legend: { live: true },
        cursor: { drag: { x: true, y: false, setScale: false }, sync: { key: "steps" }, points: { size: 6 } },
        scales: {
          x: { time: false },
          y: props.logarithmic ? { distr: 3 } : {},
        },
        axes: [
          { ...axis, size: 34, incrs: WHOLE, values: (_, values) => values.map((value) => value.toLocaleString("en")) },
          {
            ...axis,
            size: 62,
            ...(props.inBytes ? { incrs: POWERS } : {}),
            values: (_, values, _axis, _space, between) => ticks(values, between, props.format),
          },
        ],
        series: [
          { label: "step", value: (_, value) => (value === null ? "–" : value.toLocaleString("en")) },
          ...drawn.flatMap(({ label, colour, line }): uPlot.Series[] => [
            {
              label,
              stroke: colour,
              width: 1.75,
              spanGaps: false,
              ...(line.dashed ? { dash: [6, 4] } : {}),
              points: { show: isSparse, size: 5, fill: colour },
              value: (_, value) => (value === null || value === undefined ? "–" : format(value)),
            },
            { label: `${label} minimum`, stroke: "transparent", points: { show: false } },
            { label: `${label} maximum`, stroke: "transparent", points: { show: false } },
          ]),
        ],
        bands: drawn.map(({ colour }, index) => ({
          series: [3 * index + 3, 3 * index + 2] as [number, number],
          fill: `color-mix(in srgb, ${colour} 18%, transparent)`,
        })),
        hooks: {
          setSelect: [
            (self) => {
              const { left, width } = self.select;
              if (width < 8) return;
              const from = Math.floor(self.posToVal(left, "x"));
              const to = Math.ceil(self.posToVal(left + width, "x"));
              self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              current.current.onRange([Math.max(0, from), to]);
            },
          ],
          draw: [
            (self) => {
              const { ctx, bbox } = self;
              const { marks, levels } = current.current;
              ctx.save();
              ctx.beginPath();
              ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
              ctx.clip();
              ctx.lineWidth = devicePixelRatio;
              ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
              ctx.textAlign = "left";
              ctx.textBaseline = "alphabetic";
              ctx.font = `${11 * devicePixelRatio}px system-ui`;
              const line = (colour: string, from: [number, number], to: [number, number]) => {
                ctx.strokeStyle = ctx.fillStyle = css(colour);
                ctx.beginPath();
                ctx.moveTo(...from);
                ctx.lineTo(...to);
                ctx.stroke();
              };
              // What is behind a label does not run through its letters.
              const label = (text: string, x: number, y: number) => {
                ctx.save();
                ctx.setLineDash([]);
                ctx.strokeStyle = css("--card");
                ctx.lineWidth = 4 * devicePixelRatio;
                ctx.lineJoin = "round";
                ctx.strokeText(text, x, y);
                ctx.restore();
                ctx.fillText(text, x, y);
              };
              const bottom = bbox.top + bbox.height;
              const labels: [string, number][] = [];
              let taken = -Infinity;
              for (const mark of [...(marks ?? [])].sort((one, other) => one.step - other.step)) {
                const x = self.valToPos(mark.step, "x", true);
                line("--warn", [x, bbox.top], [x, bottom]);
                // Of labels that would be on each other, the first is shown; all are in the list of events.
                if (x < taken) continue;
                labels.push([mark.label, x + 4 * devicePixelRatio]);
                taken = x + ctx.measureText(mark.label).width + 12 * devicePixelRatio;
              }
              for (const [text, x] of labels) label(text, x, bbox.top + 12 * devicePixelRatio);
              for (const [index, level] of (levels ?? []).entries()) {
                const y = self.valToPos(level.value, "y", true);
                line("--quiet", [bbox.left, y], [bbox.left + bbox.width, y]);
                // Two that are near have their labels at different ends.
                const isLeft = index % 2 === 0;
                ctx.textAlign = isLeft ? "left" : "right";
                label(
                  level.label,
                  isLeft ? bbox.left + 6 * devicePixelRatio : bbox.left + bbox.width - 6 * devicePixelRatio,
                  y - 4 * devicePixelRatio,
                );
              }
              ctx.restore();
            },
          ],
        },
      };
      if (props.levels?.length && !props.logarithmic) {
        // The line is always visible, however far it is from the curves.
        options.scales!["y"]!.range = (_self, low, high) => {
          const values = current.current.levels?.map(({ value }) => value) ?? [];
          return [0 * low, Math.max(high, ...values) * 1.08];
        };
      }
      const made = new uPlot(options, options.series.map(() => []) as unknown as uPlot.AlignedData, element);
      // The bounds are drawn, but not listed in the legend.
      element.querySelectorAll<HTMLElement>(".u-series").forEach((row, index) => {
        if (index > 0 && (index - 1) % 3 !== 0) row.hidden = true;
      });
      plot.current = made;
      const observer = new ResizeObserver(() => {
        // It also reports the initial size.
        const width = element.clientWidth;
        if (width > 0 && width !== made.width) made.setSize({ width, height: props.height ?? 220 });
      });
      observer.observe(element);
      return {
        draw: update,
        destroy: () => {
          observer.disconnect();
          made.destroy();
          plot.current = null;
        },
      };
    };
    return schedule(create);
  }, [shape, theme, props.height, (props.levels?.length ?? 0) > 0]);

  // Other charts of a page are redrawn only for changes of their own data; a new one waits for its frame.
  useEffect(() => {
    if (shown.current?.plot === plot.current) update();
  });

  return (
    <figure class="chart">
      <figcaption>{props.title}</figcaption>
      <div ref={place} role="img" aria-label={describe(props)} />
    </figure>
  );
}
