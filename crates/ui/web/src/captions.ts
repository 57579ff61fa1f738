// What is done to captions, and which pictures look alike.
import type { Looks } from "./api";

export type EditKind = "front" | "end" | "replace" | "remove" | "write";

/** A change of many captions. */
export interface Edit {
  kind: EditKind;
  /** What is added, written, looked for, or the tag that is removed. */
  text: string;
  /** What takes its place. */
  by: string;
}

/** The tags of a caption, which commas divide. */
export const tagsOf = (caption: string) =>
  caption
    .split(",")
    .map((tag) => tag.trim())
    .filter(Boolean);

/** A caption after an edit. */
export function edited(caption: string, { kind, text, by }: Edit): string {
  switch (kind) {
    case "front":
      return text + caption;
    case "end":
      return caption + text;
    case "replace":
      return text === "" ? caption : caption.replaceAll(text, () => by);
    case "remove": {
      const tags = tagsOf(caption);
      const left = tags.filter((tag) => tag.toLowerCase() !== text.trim().toLowerCase());
      return left.length === tags.length ? caption : left.join(", ");
    }
    case "write":
      return caption.trim() === "" ? text : caption;
  }
}

/** How often each tag is used, the most frequent first. */
export function tagCounts(captions: Iterable<string | null>): [string, number][] {
  const counts = new Map<string, number>();
  for (const caption of captions) {
    for (const tag of new Set(tagsOf(caption ?? ""))) counts.set(tag, (counts.get(tag) ?? 0) + 1);
  }
  return [...counts].sort(([one, many], [other, more]) => more - many || (one < other ? -1 : 1));
}

/** How many bits of 64 may differ between pictures that look alike: fewer than there are quarters of a hash. */
const ALIKE = 3;
const QUARTER = 4;

const BITS = Array.from({ length: 16 }, (_, digit) => digit.toString(2).replaceAll("0", "").length);

function distance(one: string, other: string): number {
  let bits = 0;
  for (let at = 0; at < one.length; at += 1) bits += BITS[Number.parseInt(one[at]!, 16) ^ Number.parseInt(other[at]!, 16)]!;
  return bits;
}

/** For each picture that others look like, the first of these. */
export function lookAlike(looks: Iterable<Looks>): Map<number, number> {
  const first = new Map<number, number>();
  // Of two hashes that differ in so few bits, a quarter is equal.
  const known = new Map<string, { medium: number; hash: string }[]>();
  const rootOf = (medium: number): number => {
    const above = first.get(medium) ?? medium;
    return above === medium ? medium : rootOf(above);
  };
  for (const { medium, hash } of looks) {
    if (hash === null) continue;
    for (let at = 0; at < hash.length; at += QUARTER) {
      const quarter = `${at} ${hash.slice(at, at + QUARTER)}`;
      const others = known.get(quarter) ?? [];
      for (const other of others) {
        if (other.medium === medium || distance(hash, other.hash) > ALIKE) continue;
        const [low, high] = [rootOf(medium), rootOf(other.medium)].sort((one, two) => one - two) as [number, number];
        first.set(low, low);
        first.set(high, low);
      }
      // Many equal ones need not be compared with each other.
      if (!others.some((other) => other.hash === hash)) known.set(quarter, [...others, { medium, hash }]);
    }
  }
  return new Map([...first.keys()].map((medium) => [medium, rootOf(medium)]));
}
