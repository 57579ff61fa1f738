// What the tests put into the page, and what a selector finds, by the name of the element that it ends with.
import type { AxeResults } from "axe-core";

type Selected<S extends string> = S extends `${string} ${infer Rest}`
  ? Selected<Rest>
  : S extends `${infer Tag}[${string}`
    ? Selected<Tag>
    : S extends keyof HTMLElementTagNameMap
      ? HTMLElementTagNameMap[S]
      : HTMLElement;

declare global {
  interface ParentNode {
    querySelector<S extends string>(selectors: S): Selected<S> | null;
    querySelectorAll<S extends string>(selectors: S): NodeListOf<Selected<S>>;
  }
  var axe: { run: (root: Document, options: object) => Promise<AxeResults> };
  /** The notifications that were shown. */
  var told: string[];
}
