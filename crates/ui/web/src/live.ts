// Event streams of the server, while the page is visible.

/** How long to wait before a stream that was refused is asked for again, in milliseconds. */
const PAUSE = 3000;
const OFFLINE = "No connection to surefoot ui. Runs and the queue continue; the page reconnects by itself.";

interface Listener {
  /** The address, after the last event with an id. */
  url: (last: string | null) => string;
  on: Record<string, (data: string) => void>;
  /** Why there is no connection, or null. */
  problem: (text: string | null) => void;
}

/** Why a stream is refused, which an EventSource does not tell. */
async function reason(url: string): Promise<string | null> {
  const stop = new AbortController();
  try {
    const response = await fetch(url, { signal: stop.signal });
    if (response.ok) return null;
    const { error } = (await response.json()) as { error: string };
    return response.status === 401 ? `${error}; the page reconnects once you have signed in` : `${error}; the page tries again`;
  } catch {
    return OFFLINE;
  } finally {
    stop.abort();
  }
}

/**
 * Listens until the returned function is called. A browser opens six connections to a server, so a hidden tab has
 * none; it continues where it was once it is seen.
 */
export function listen({ url, on, problem }: Listener): () => void {
  let source: EventSource | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let last: string | null = null;
  let ended = false;
  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };
  const open = () => {
    close();
    if (ended || document.visibilityState === "hidden") return;
    const opened = new EventSource(url(last));
    source = opened;
    for (const [name, take] of Object.entries(on)) {
      opened.addEventListener(name, (event: MessageEvent<string>) => {
        last = event.lastEventId || last;
        problem(null);
        take(event.data);
      });
    }
    opened.onerror = () => {
      // While it is connecting, the browser tries again by itself; it gives up on any answer but a stream.
      if (opened.readyState !== EventSource.CLOSED) return problem(OFFLINE);
      void reason(url(last)).then((why) => {
        if (ended || source !== opened) return;
        if (why !== null) problem(why);
        timer = setTimeout(open, PAUSE);
      });
    };
  };
  document.addEventListener("visibilitychange", open);
  open();
  return () => {
    ended = true;
    document.removeEventListener("visibilitychange", open);
    close();
  };
}
