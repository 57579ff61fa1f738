// Formatting of numbers.

export const UNKNOWN = "unknown";

export function number(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, 1) });
}

/** With three decimals, which stand below each other in a column. */
export function decimals(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return value.toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });
}

const MAX_DIGITS = 12;

/** The numbers at an axis, all with the decimals that the space between two of them needs, and all with the same power of ten. */
export function ticks(values: (number | null)[], between: number, format?: (value: number) => string): string[] {
  const most = Math.max(...values.map((value) => Math.abs(value ?? 0)));
  const power = between < 1e-4 && most > 0 ? Math.floor(Math.log10(most)) : 0;
  const space = between / 10 ** power;
  let digits = 0;
  while (digits < MAX_DIGITS && Math.abs(Number(space.toFixed(digits)) - space) > space * 1e-6) digits += 1;
  const written = (value: number) => {
    if (format) return format(value);
    const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    if (power === 0) return value.toLocaleString("en", options);
    return value === 0 ? "0" : `${(value / 10 ** power).toLocaleString("en", options)}e${power}`;
  };
  return values.map((value) => (value === null ? "" : written(value)));
}

export function whole(value: number | null | undefined): string {
  return value === null || value === undefined ? UNKNOWN : Math.round(value).toLocaleString("en");
}

/** `1 picture`, `20 pictures`; nothing for none. */
export const some = (count: number, one: string, many = `${one}s`) => count > 0 && `${whole(count)} ${count === 1 ? one : many}`;

/** `20 pictures and 3 videos`. */
export const media = (pictures: number, videos: number) =>
  [some(pictures, "picture"), some(videos, "video")].filter(Boolean).join(" and ") || "0 pictures";

/** The order of names as people count: 2.png before 10.png. */
export const byName = new Intl.Collator("en", { numeric: true }).compare;

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  const unit = unitOf(value);
  return `${(value / 1024 ** unit).toLocaleString("en", { maximumSignificantDigits: 3 })} ${UNITS[unit]}`;
}

/** Bytes in the unit that suits the largest of a column, with two decimals. */
export function bytesLike(largest: number | null, value: number | null): string {
  if (value === null || largest === null) return UNKNOWN;
  const unit = unitOf(largest);
  const digits = unit === 0 ? 0 : 2;
  const shown = (value / 1024 ** unit).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return `${shown} ${UNITS[unit]}`;
}

const unitOf = (value: number) =>
  Math.max(
    0,
    UNITS.findLastIndex((_, unit) => value >= 1024 ** unit),
  );

export function duration(seconds: number): string {
  const minutes = Math.round(seconds / 60);
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.round(hours / 24)} days`;
}

export function when(seconds: number | null, now: number): string {
  if (seconds === null) return UNKNOWN;
  const ago = now - seconds;
  // If the clock was set back, a time in the future is shown as a date.
  if (ago < -5 || ago > 86_400 * 2) return new Date(seconds * 1000).toLocaleDateString();
  return ago < 5 ? "now" : `${duration(ago)} ago`;
}

/** When a step was first seen, in seconds. */
export interface Seen {
  step: number;
  at: number;
}

/** How many moments are kept. */
const MOMENTS = 30;

/** What was seen, once a run is at `step`. */
export const seenAt = (seen: Seen[], step: number, now: number): Seen[] =>
  seen.at(-1)?.step === step ? seen : [...seen, { step, at: now }].slice(-MOMENTS);

/**
 * The time left in seconds, from the moments at which the step changed: logged steps come in groups, so any other
 * moment lies somewhere within one. The first is that of opening the page.
 */
export function timeLeft(seen: Seen[], maxSteps: number, now: number): number | null {
  const [, first] = seen;
  const last = seen.at(-1);
  if (!first || !last || last.step <= first.step) return null;
  const perStep = (last.at - first.at) / (last.step - first.step);
  return Math.max(0, (maxSteps - last.step) * perStep - (now - last.at));
}

/** The value of a key in the config of a run, as the trainer writes it: one key on a line, and lists below it. */
export function keyOf(config: string, key: string): string | null {
  const value = new RegExp(`^ *${key}:([^#\\n]*)`, "m").exec(config)?.[1]?.trim();
  return value === undefined || value === "null" ? null : value;
}
