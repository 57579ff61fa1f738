// The lines in which two texts differ.

export interface DiffLine {
  kind: "same" | "gone" | "new";
  text: string;
}

/** All lines of both texts, in their order, with as many as possible that are the same. */
export function diff(before: string, after: string): DiffLine[] {
  const [one, other] = [before.split("\n"), after.split("\n")];
  let start = 0;
  while (start < one.length && start < other.length && one[start] === other[start]) start += 1;
  let end = 0;
  while (end < one.length - start && end < other.length - start && one.at(-1 - end) === other.at(-1 - end)) end += 1;
  const [left, right] = [one.slice(start, one.length - end), other.slice(start, other.length - end)];
  // The most lines in common from each pair of places on.
  const common = Array.from({ length: left.length + 1 }, () => new Array<number>(right.length + 1).fill(0));
  for (let i = left.length - 1; i >= 0; i -= 1) {
    for (let j = right.length - 1; j >= 0; j -= 1) {
      common[i]![j] = left[i] === right[j] ? common[i + 1]![j + 1]! + 1 : Math.max(common[i + 1]![j]!, common[i]![j + 1]!);
    }
  }
  const lines: DiffLine[] = one.slice(0, start).map((text) => ({ kind: "same", text }));
  let [i, j] = [0, 0];
  while (i < left.length || j < right.length) {
    if (i < left.length && j < right.length && left[i] === right[j]) {
      lines.push({ kind: "same", text: left[i]! });
      i += 1;
      j += 1;
    } else if (j === right.length || (i < left.length && common[i + 1]![j]! >= common[i]![j + 1]!)) {
      lines.push({ kind: "gone", text: left[i]! });
      i += 1;
    } else {
      lines.push({ kind: "new", text: right[j]! });
      j += 1;
    }
  }
  return [...lines, ...one.slice(one.length - end).map((text): DiffLine => ({ kind: "same", text }))];
}
